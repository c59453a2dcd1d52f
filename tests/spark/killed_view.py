"""An update of the view `by_route` that kills its own driver.

    killed_view.py FOLDER POINT

`merging`: at some moment while Delta writes the commit. `committed`: right behind the commit, before anything is told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from headrace.pipeline.declare.declaration import View
from headrace.pipeline.spark import views
from headrace.pipeline.spark.session import SessionSpec, start_spark
from headrace.pipeline.spark.sinks.delta import replace_keys
from tests.spark.test_views import VIEWS


def main() -> None:
    folder, point = Path(sys.argv[1]), sys.argv[2]
    spark = start_spark(SessionSpec(folder=folder / "spark"))

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def struck(*given: Any, **named: Any) -> Any:
        if point == "merging":
            threading.Timer(random.uniform(0.1, 2), kill).start()
        made = replace_keys(*given, **named)
        kill()
        return made

    setattr(views, "replace_keys", struck)  # noqa: B010
    sql, key, _ = VIEWS["by_route"]
    paths = {name: str(folder / name) for name in ("speeds", "stops")}
    views.update_view(spark, View("by_route", sql, key, str(folder / "by_route")), paths)


if __name__ == "__main__":
    main()
