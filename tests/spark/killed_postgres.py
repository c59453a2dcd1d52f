"""A pipeline into PostgreSQL that kills its own driver behind a step of a batch.

    killed_postgres.py FOLDER BOOTSTRAP STEP BATCH

Every start has another Spark; only the checkpoint, Kafka and PostgreSQL outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.spark.sinks.postgres import _Attempt


def main() -> None:
    folder, bootstrap, step, number = sys.argv[1:]
    original = getattr(_Attempt, step, None)

    def then_die(attempt: _Attempt, *given: Any) -> Any:
        assert original is not None
        done = original(attempt, *given)
        if attempt.batch.number >= int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    if original is not None:
        setattr(_Attempt, step, then_die)
    Pipeline.from_file(Path(folder), "p", Path(folder) / ".headrace").run(bootstrap, once=True)


main()
