"""READ tables that pipelines write, without a JVM: columns, rows, counts, history; and SQL over them, by DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.tables.delta_log import Commit, is_delta
    from headrace.tables.engine import Engine, Limits, Stream
    from headrace.tables.rows import plain_rows
    from headrace.tables.spark_types import ddl_schema
    from headrace.tables.table import Query, Table, TableKind, is_table, read_table
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "delta_log": ["Commit", "is_delta"],
        "engine": ["Engine", "Limits", "Stream"],
        "rows": ["plain_rows"],
        "spark_types": ["ddl_schema"],
        "table": ["Query", "Table", "TableKind", "is_table", "read_table"],
    })  # fmt: skip
