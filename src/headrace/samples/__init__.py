"""MAKE example data: bus breadcrumbs and stops, taxi rides and zones, customers and their changes, the Iris table.

Everything but the Iris table (150 measurements, published by Fisher in 1936) is invented here, record by record, after
the rates of disorder and damage that real files have. The same seed gives the same bytes. A sample of any size is
streamed in constant memory and can be walked through again and again:

    for record in breadcrumbs(records=1000, seed=7): ...

This room knows nothing of Kafka and imports nothing but `errors`.
"""

from headrace.samples.breadcrumb import breadcrumbs
from headrace.samples.change import changes
from headrace.samples.customer import customers
from headrace.samples.damage import Damage
from headrace.samples.iris_table import Iris, flowers, iris
from headrace.samples.sample import Sample
from headrace.samples.stop_event import stops
from headrace.samples.taxi_ride import RIDE_VERSIONS, ride_key_schema, ride_schema, taxi
from headrace.samples.zone import zones

__all__ = [
    "RIDE_VERSIONS",
    "Damage",
    "Iris",
    "Sample",
    "breadcrumbs",
    "changes",
    "customers",
    "flowers",
    "iris",
    "ride_key_schema",
    "ride_schema",
    "stops",
    "taxi",
    "zones",
]
