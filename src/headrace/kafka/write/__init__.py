"""Records into topics: from files, streams and Python objects, at a pace, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.kafka.write.exactly_once import Mark, MarkedWriter, committed, prepare, settle
    from headrace.kafka.write.inputs.batch import BadPiece, InputBatch, InputOptions, Shape, field
    from headrace.kafka.write.inputs.source import require_readable
    from headrace.kafka.write.pace import Pace
    from headrace.kafka.write.probe import load_client, write_to_all
    from headrace.kafka.write.producer import ProduceOptions, ProduceReport, produce
    from headrace.kafka.write.shaping import (
        Input,
        Outgoing,
        Shaper,
        Shaping,
        encode_value,
        parse_route,
        parse_target,
        partition_of,
    )
    from headrace.kafka.write.undelivered import Undeliverable
    from headrace.kafka.write.writer import Records, TransactionalProducer, Writer, is_fenced
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "exactly_once": ["Mark", "MarkedWriter", "committed", "prepare", "settle"],
        "inputs.batch": ["BadPiece", "InputBatch", "InputOptions", "Shape", "field"],
        "inputs.source": ["require_readable"],
        "pace": ["Pace"],
        "probe": ["load_client", "write_to_all"],
        "producer": ["ProduceOptions", "ProduceReport", "produce"],
        "shaping": ["Input", "Outgoing", "Shaper", "Shaping", "encode_value", "parse_route", "parse_target",
            "partition_of"],
        "undelivered": ["Undeliverable"],
        "writer": ["Records", "TransactionalProducer", "Writer", "is_fenced"],
    })  # fmt: skip
