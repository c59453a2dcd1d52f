"""COMPUTE on Spark: records of any Kafka, decoded, checked and shaped into tables and topics, every row accounted for.

`Pipeline` has every verb. Behind this door `declare` reads the file, `spark` runs it (nothing else imports pyspark),
`books` has ledger, checkpoint and dead letters and never needs a JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.pipeline.background import Background
    from headrace.pipeline.books.dead_letters import Group, Span, Wanted
    from headrace.pipeline.books.known_tables import KnownTable, find_table, known_decodes, known_tables
    from headrace.pipeline.books.ledger import BatchEntry
    from headrace.pipeline.books.redrive import RedrivePlan, RedriveReport
    from headrace.pipeline.books.status import PartitionStatus, PipelineStatus
    from headrace.pipeline.books.view_updates import ViewUpdate
    from headrace.pipeline.declare.declaration import Decode
    from headrace.pipeline.declare.reading import declared_views
    from headrace.pipeline.declare.sink_kinds import register_sink
    from headrace.pipeline.graph import (
        Graph,
        GraphNode,
        GraphObserver,
        GraphReport,
        NodeResult,
        RefreshPlan,
        ViewStatus,
    )
    from headrace.pipeline.pipeline import Pipeline, RunObserver, RunReport, example, spark_session
    from headrace.pipeline.spark.session import archive_is_made
    from headrace.pipeline.spark.sinks.sinks import SinkWriter
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "background": ["Background"],
        "books.dead_letters": ["Group", "Span", "Wanted"],
        "books.known_tables": ["KnownTable", "find_table", "known_decodes", "known_tables"],
        "books.ledger": ["BatchEntry"],
        "books.redrive": ["RedrivePlan", "RedriveReport"],
        "books.status": ["PartitionStatus", "PipelineStatus"],
        "books.view_updates": ["ViewUpdate"],
        "declare.declaration": ["Decode"],
        "declare.reading": ["declared_views"],
        "declare.sink_kinds": ["register_sink"],
        "graph": ["Graph", "GraphNode", "GraphObserver", "GraphReport", "NodeResult", "RefreshPlan", "ViewStatus"],
        "pipeline": ["Pipeline", "RunObserver", "RunReport", "example", "spark_session"],
        "spark.session": ["archive_is_made"],
        "spark.sinks.sinks": ["SinkWriter"],
    })  # fmt: skip
