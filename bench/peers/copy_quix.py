"""Quix Streams: JSON of one topic into another."""

# mypy: ignore-errors
from __future__ import annotations

import sys
import uuid

from quixstreams import Application


def main(bootstrap: str, source: str, target: str, _place: str) -> None:
    app = Application(
        broker_address=bootstrap, consumer_group=uuid.uuid4().hex, auto_offset_reset="earliest", loglevel="WARNING"
    )
    rows = app.dataframe(app.topic(source, value_deserializer="json"))
    rows.filter(lambda row: row["id"] is not None).to_topic(app.topic(target, value_serializer="json"))
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
