"""Avro in the registry's wire format: headrace's codec against confluent-kafka's serializer and deserializer.

    python -m bench.codec [--records 100000] [--rounds 7] [--registry URL]

Taxi rides of five fields, in memory, against a real registry that is asked once. Times are of CPU, so the rates are per
core whatever else the machine does. What each of them wrote is read by the other, so that both are known to do the same
work; headrace checks every value as well.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from bench.contest import Figure, contest, expect, report
from headrace.cluster import Cluster
from headrace.schemas import Decoded, SchemaCodec
from headrace.schemas.registry import Registry, Schema

TOPIC = "yellow_taxi_rides"
RIDE = json.dumps({
    "type": "record", "name": "Ride", "namespace": "taxi", "fields": [
        {"name": "vendorId", "type": "int"},
        {"name": "passenger_count", "type": "int"},
        {"name": "trip_distance", "type": "float"},
        {"name": "payment_type", "type": "int"},
        {"name": "total_amount", "type": "float"},
    ],
})  # fmt: skip


def rides(count: int) -> list[dict[str, Any]]:
    rng = random.Random(4)
    return [
        {
            "vendorId": rng.randrange(1, 3),
            "passenger_count": rng.randrange(1, 7),
            "trip_distance": rng.randrange(80) / 4,
            "payment_type": rng.randrange(1, 6),
            "total_amount": rng.randrange(400) / 4,
        }
        for _ in range(count)
    ]


@contextmanager
def registry_at(url: str | None) -> Iterator[str]:
    """The registry of that address, or one of our own for as long as this takes."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        cluster = Cluster(Path(folder) / "home", brokers=1, services=("registry",))
        try:
            cluster.up()
            yield cluster.registry
        finally:
            cluster.down(wipe=True)


def timed(work: Callable[[], Any]) -> Figure:
    began = time.process_time()
    work()
    took_s = time.process_time() - began
    return took_s, took_s


def main() -> None:
    parser = argparse.ArgumentParser(description="Avro codecs side by side.")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--registry", metavar="URL")
    wanted = parser.parse_args()
    with registry_at(wanted.registry) as url, Registry(url) as registry, SchemaRegistryClient({"url": url}) as client:
        compare(registry, client, rides(wanted.records), wanted.rounds)


def compare(registry: Registry, client: Any, rows: list[dict[str, Any]], rounds: int) -> None:
    schema = Schema(RIDE)
    ours = SchemaCodec(registry, written=(registry.register(f"{TOPIC}-value", schema), schema))
    serialize, deserialize = AvroSerializer(client, RIDE), AvroDeserializer(client)
    context = SerializationContext(TOPIC, MessageField.VALUE)
    theirs: list[Any] = [serialize(row, context) for row in rows]
    expect(ours.encode_many(rows) == theirs, "the two do not write the same bytes")
    read = [found.value for found in ours.decode_many(theirs) if isinstance(found, Decoded)]
    expect(read == [deserialize(data, context) for data in theirs] == rows, "the two do not read the same objects")

    writers: dict[str, Callable[[], Any]] = {
        "headrace": lambda: ours.encode_many(rows),
        "confluent-kafka": lambda: [serialize(row, context) for row in rows],
    }
    readers: dict[str, Callable[[], Any]] = {
        "headrace": lambda: ours.decode_many(theirs),
        "confluent-kafka": lambda: [deserialize(data, context) for data in theirs],
    }
    for title, contestants in (("objects to bytes", writers), ("bytes to objects", readers)):
        print(f"{title}, {len(rows):,} records, {rounds} rounds")
        report(contest(contestants, timed, rounds), len(rows))


if __name__ == "__main__":
    main()
