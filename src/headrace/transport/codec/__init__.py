"""Records and their schemas: objects to bytes and back, in the wire format of Confluent's registry.

    codec = open_codec("avro:ride.avsc", registry, "rides")
    produce(cluster, "rides", rides, options=ProduceOptions(shaping=Shaping(value_codec=codec)))

A record that does not fit its schema, an unknown id and damaged bytes are an error of that one record: both directions
work on lists and return, for each element, a result or a `CodecError`. Only a registry that cannot be asked ends it
all. Which schema a record was written with is told by the id it carries: a topic may hold many versions at once.

`wire` is the frame around the bytes; `avro`, `json_schema` and `protobuf` know what is inside; `schema_codec` joins
them with the registry.
"""

from headrace.transport.codec.schema_codec import Codec, Decoded, SchemaCodec, decode_messages, open_codec
from headrace.transport.codec.wire import KEY_HEADER, VALUE_HEADER

__all__ = ["KEY_HEADER", "VALUE_HEADER", "Codec", "Decoded", "SchemaCodec", "decode_messages", "open_codec"]
