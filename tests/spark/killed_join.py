"""A run of a join that kills its own driver at a point of a batch.

    killed_join.py FOLDER BOOTSTRAP POINT BATCH

Every start has another Spark; only the checkpoint, the tables and Kafka outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.home import Home
from headrace.pipeline.books.ledger import Ledger
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark.sinks import sinks

#: Between two sinks, and before Spark notes that the batch is done; the state was written before either.
POINTS = ("one sink", "recorded")


def main() -> None:
    folder, bootstrap, point, batch = sys.argv[1:]

    def strike(number: int) -> None:
        if number >= int(batch):
            os.kill(os.getpid(), signal.SIGKILL)

    write, enter = sinks.write_sink, Ledger.enter
    written: list[int] = []

    def wrote(sink: Any, rows: Any, of: Any) -> Any:
        if point == "one sink" and of.number in written:
            strike(of.number)
        written.append(of.number)
        return write(sink, rows, of)

    def entered(self: Any, run: str, entry: Any) -> None:
        enter(self, run, entry)
        strike(entry.batch if point == "recorded" else -1)

    setattr(sinks, "write_sink", wrote)  # noqa: B010 - mypy knows the names
    setattr(Ledger, "enter", entered)  # noqa: B010
    home = Home(Path(folder) / ".headrace")
    Pipeline.from_file(Path(folder) / "headrace.toml", "p", home).run(bootstrap, once=True)


if __name__ == "__main__":
    main()
