"""Pathway: a table over a topic, read to its end, a step in Python, its own writers of lines."""

# mypy: ignore-errors
from __future__ import annotations

import sys
import uuid
from pathlib import Path

import orjson
import pathway as pw

from bench.peers.rows import typed


@pw.udf
def line_of(value: bytes) -> str | None:
    row = typed(value)
    return orjson.dumps(row).decode() if row else None


def main(bootstrap: str, topic: str, folder: str, _records: str) -> None:
    for name in ("good", "bad"):
        Path(folder, name).mkdir(parents=True)
    settings = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    records = pw.io.kafka.read(settings, topic=topic, format="raw", mode="static")
    rows = records.select(pw.this.data, line=line_of(pw.this.data))
    good, bad = rows.filter(pw.this.line.is_not_none()), rows.filter(pw.this.line.is_none())
    pw.io.jsonlines.write(good.select(pw.this.line), str(Path(folder, "good", "rows.lines")))
    pw.io.jsonlines.write(bad.select(data=pw.apply(bytes.hex, pw.this.data)), str(Path(folder, "bad", "records.lines")))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main(*sys.argv[1:])
