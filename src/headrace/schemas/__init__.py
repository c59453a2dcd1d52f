"""Schemas: the client of a registry, what a change breaks, and codecs that read and write by a schema.

Nothing here needs a Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.schemas.codec.avro import whole
    from headrace.schemas.codec.schema_codec import Codec, Decoded, SchemaCodec, open_codec
    from headrace.schemas.codec.wire import KEY_HEADER, PREFIX_SIZE, VALUE_HEADER, id_in_header, id_in_prefix, prefix
    from headrace.schemas.columns import JsonColumns, ProtobufColumns, avro_columns
    from headrace.schemas.evolution import diff
    from headrace.schemas.files import read_schema
    from headrace.schemas.registry import (
        LEVELS,
        Kind,
        Level,
        Reference,
        Registry,
        Schema,
        Verdict,
        Version,
        incompatible,
    )
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "codec.avro": ["whole"],
        "codec.schema_codec": ["Codec", "Decoded", "SchemaCodec", "open_codec"],
        "codec.wire": ["KEY_HEADER", "PREFIX_SIZE", "VALUE_HEADER", "id_in_header", "id_in_prefix", "prefix"],
        "columns": ["JsonColumns", "ProtobufColumns", "avro_columns"],
        "evolution": ["diff"],
        "files": ["read_schema"],
        "registry": ["Kind", "LEVELS", "Level", "Reference", "Registry", "Schema", "Verdict", "Version",
            "incompatible"],
    })  # fmt: skip
