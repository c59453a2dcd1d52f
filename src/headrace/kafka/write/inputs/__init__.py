"""Files and streams as records: what a file holds, cut into values that can be sent as they are.

Owns the shapes (`Shape`), their detection, the cutting and the validation; a batch from a stream is what
one read gave, so a slow pipe's records come when they arrive. It never holds more than a few blocks, whatever
the size of the file, and it never sends, prints or repairs anything.

The invariant: every byte of the input is in a record, is a separator, or is in a piece that was
refused and counted. A JSON record keeps its bytes; only one that spans several lines loses the white
space between its tokens (numbers and strings stay as they were written). A record has to be UTF-8
JSON by msgspec's reading: no NaN, no lone surrogates, about 1,000 levels deep at most.
In `lines` an empty line is an empty record; elsewhere blank lines separate. CRLF ends a line like LF.
A CSV cell is a JSON string, never guessed to be a number.
"""

from headrace.kafka.write.inputs.batch import BadPiece, InputBatch, InputOptions, Place, Shape, field, key_bytes
from headrace.kafka.write.inputs.detection import detect_shape
from headrace.kafka.write.inputs.reader import RecordReader
from headrace.kafka.write.inputs.source import require_readable
from headrace.kafka.write.inputs.values import MAX_RECORD_BYTES

__all__ = [
    "MAX_RECORD_BYTES",
    "BadPiece",
    "InputBatch",
    "InputOptions",
    "Place",
    "RecordReader",
    "Shape",
    "detect_shape",
    "field",
    "key_bytes",
    "require_readable",
]
