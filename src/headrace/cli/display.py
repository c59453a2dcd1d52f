"""Shows a running pipeline: on a terminal a live picture, elsewhere messages only.

The run reports its batches; lag, rate and warnings come from `Pipeline.status`, polled every two seconds.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from headrace.cli.app import App
from headrace.cli.output import print_table, say
from headrace.errors import HeadraceError
from headrace.runtime import Periodic
from headrace.text import duration, plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from headrace.kafka import Connection
    from headrace.pipeline import BatchEntry, PartitionStatus, Pipeline, PipelineStatus, RunObserver

_REST_S = 2.0
_DRAWN_PER_S = 2
_SHOWN_PARTITIONS = 8


class Display(Periodic):
    """Of one run; used as a context around it. Its methods may be called from another thread."""

    def __init__(self, app: App, pipeline: Pipeline, connection: Connection) -> None:
        super().__init__(f"display of {pipeline.name}")
        self.app = app
        self.pipeline = pipeline
        self.connection = connection
        self.read = self.dead = 0
        self.began = self.batch_began = time.monotonic()
        self.last: BatchEntry | None = None
        self.status: PipelineStatus | None = None
        self._live: Live | None = None

    @property
    def observer(self) -> RunObserver:
        """A run with this observer is shown here."""
        from headrace.pipeline import RunObserver

        return RunObserver(say=self.say, on_batch=self.batch, show=self.rows)

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self.app.quiet and not self.app.json:
            from rich.console import Console
            from rich.live import Live

            # Standard output may be a pipe: what goes there must not be drawn here.
            self._live = Live(
                get_renderable=self._picture, console=Console(stderr=True), refresh_per_second=_DRAWN_PER_S,
                redirect_stdout=sys.stdout.isatty(), transient=True,
            )  # fmt: skip
            self._live.start()
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A message above the picture."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            self.app.say(text)

    def batch(self, entry: BatchEntry) -> None:
        """A batch is done."""
        self.read += entry.delivered
        self.dead += entry.total("dead") + entry.total("late")
        self.last, self.batch_began = entry, time.monotonic()

    def rows(self, title: str, rows: list[dict[str, object]]) -> None:
        """What a console sink shows: data, so to standard output."""
        say(title)
        if rows:
            print_table(list(rows[0]), [list(row.values()) for row in rows])

    def poll(self) -> float:
        """How far the pipeline is."""
        try:
            self.status = self.pipeline.status(self.connection)
        except HeadraceError:
            self.status = None
        return _REST_S

    # -- the picture ---------------------------------------------------------------------------------------------------

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        lines = [self._totals(), self._batches()]
        if self.status is None:
            return Group(*map(Text, lines))
        lines.append(self._behind(self.status))
        warnings = [Text(f"  {warned.text}", style="yellow") for warned in self.status.warnings]
        return Group(*map(Text, lines), *warnings, _partitions(self.status.partitions))

    def _totals(self) -> str:
        dead = f", {self.dead:,} dead or late" if self.dead else ""
        return f"{self.pipeline.name}: {plural(self.read, 'record')} in {duration(time.monotonic() - self.began)}{dead}"

    def _batches(self) -> str:
        at_work = f"running for {time.monotonic() - self.batch_began:.0f} s"
        if self.last is None:
            return f"  the first batch is {at_work}"
        rate = self.last.delivered / max(self.last.seconds, 0.001)
        done = f"{self.last.delivered:,} in {self.last.seconds:.1f} s, {rate:,.0f}/s"
        return f"  batch {self.last.batch}: {done}; the next is {at_work}"

    def _behind(self, status: PipelineStatus) -> str:
        if status.state == "waiting":
            return f"  waiting: {status.why}"
        lag = "unknown" if status.lag is None else plural(status.lag, "record")
        oldest = f", the oldest for {duration(status.lag_s)}" if status.lag and status.lag_s else ""
        ahead = f", caught up in {duration(status.catch_up_s)}" if status.catch_up_s else ""
        rate = f"; {status.rate:,.0f} records/s recently" if status.rate else ""
        return f"  unread: {lag}{oldest}{ahead}{rate}"


def _partitions(partitions: tuple[PartitionStatus, ...]) -> RenderableType:
    """All of them, or those that are furthest behind."""
    from rich.table import Table

    worst = sorted(partitions, key=lambda p: -(p.lag or 0))[:_SHOWN_PARTITIONS]
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for heading in ("PARTITION", "PROCESSED", "END", "LAG", "WAITS"):
        table.add_column(heading, justify="left" if heading == "PARTITION" else "right")
    for p in sorted(worst, key=lambda p: (p.topic, p.partition)):
        counts = ["-" if count is None else f"{count:,}" for count in (p.processed, p.end, p.lag)]
        table.add_row(f"{p.topic}/{p.partition}", *counts, duration(p.lag_s))
    if len(partitions) > len(worst):
        table.add_row(f"and {len(partitions) - len(worst)} more with less lag")
    return table
