"""Bytewax: a Kafka source, a step in Python, a sink of our own. Its Kafka input is read in pieces of 10,000."""

# mypy: ignore-errors
from __future__ import annotations

import sys

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

from bench.peers.rows import Files, typed


class Partition(StatelessSinkPartition):
    def __init__(self, folder: str) -> None:
        self.files = Files(folder)

    def write_batch(self, items: list) -> None:
        for value, row in items:
            self.files.add(value, row)

    def close(self) -> None:
        self.files.close()


class Sink(DynamicSink):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def build(self, _step: str, _index: int, _count: int) -> Partition:
        return Partition(self.folder)


def main(bootstrap: str, topic: str, folder: str, _records: str) -> None:
    flow = Dataflow("bench")
    stream = op.input("kafka", flow, KafkaSource([bootstrap], [topic], tail=False, batch_size=10_000))
    rows = op.flat_map_batch("typed", stream, lambda messages: [(m.value, typed(m.value)) for m in messages])
    op.output("files", rows, Sink(folder))
    run_main(flow)


if __name__ == "__main__":
    main(*sys.argv[1:])
