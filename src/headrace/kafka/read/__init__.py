"""Records out of topics: by a group or without one, as objects, text and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.kafka.read.consumer import Reading, consume, consume_arrow, reading
    from headrace.kafka.read.damage import find, is_damage
    from headrace.kafka.read.options import Batch, ConsumeOptions, ConsumeReport, DamagedBatch, OwnershipEvent
    from headrace.kafka.read.outputs import (
        CSV_HEADING,
        OrderCheck,
        ParquetWriter,
        StreamWriter,
        Writer,
        encode_csv,
        encode_ndjson,
        end_with_a_whole_line,
        format_encoder,
        table,
        values_encoder,
    )
    from headrace.kafka.read.plot import Scatter, Series
    from headrace.kafka.read.records import Filter, JsonRecord, Record, headers_of, one_line
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "consumer": ["Reading", "consume", "consume_arrow", "reading"],
        "damage": ["find", "is_damage"],
        "options": ["Batch", "ConsumeOptions", "ConsumeReport", "DamagedBatch", "OwnershipEvent"],
        "outputs": ["CSV_HEADING", "OrderCheck", "ParquetWriter", "StreamWriter", "Writer", "encode_csv",
            "encode_ndjson", "end_with_a_whole_line", "format_encoder", "table", "values_encoder"],
        "plot": ["Scatter", "Series"],
        "records": ["Filter", "JsonRecord", "Record", "headers_of", "one_line"],
    })  # fmt: skip
