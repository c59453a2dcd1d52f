"""Records and their schemas: objects to bytes and back, in the wire format of Confluent's registry.

    codec = open_codec("avro:ride.avsc", registry, "rides")
    produce(cluster, "rides", rides, options=ProduceOptions(shaping=Shaping(value_codec=codec)))

A record that does not fit its schema, an unknown id and damaged bytes are an error of that one record: both directions
work on lists and return, for each element, a result or a `CodecError`. Only a registry that cannot be asked ends it
all. The id in a record says which schema it was written with: a topic may hold many versions at once.

`wire` is the frame around the bytes; `avro`, `json_schema` and `protobuf` know what is inside; `schema_codec` joins
them with the registry.
"""
