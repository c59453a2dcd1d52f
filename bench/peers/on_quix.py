"""Quix Streams: a dataframe over a topic, a step in Python, a sink of our own."""

# mypy: ignore-errors
from __future__ import annotations

import sys
import uuid

from quixstreams import Application
from quixstreams.sinks import BatchingSink

from bench.peers.rows import Files, typed


class Sink(BatchingSink):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.files = Files(folder)

    def write(self, batch) -> None:
        for item in batch:
            self.files.add(*item.value)


def main(bootstrap: str, topic: str, folder: str, records: str) -> None:
    app = Application(
        broker_address=bootstrap, consumer_group=uuid.uuid4().hex, auto_offset_reset="earliest", loglevel="WARNING"
    )
    sink = Sink(folder)
    app.dataframe(app.topic(topic, value_deserializer="bytes")).apply(lambda value: (value, typed(value))).sink(sink)
    app.run(count=int(records), collect=False)
    sink.files.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
