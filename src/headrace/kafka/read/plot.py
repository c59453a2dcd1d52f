"""A scatter plot of records: two numbers of each value, and a colour for each series.

    scatter = Scatter("0", "1", [Series.parse("setosa:blue=virginicasetosa/1"), Series.parse("versicolor")])
    for record in consume(cluster, "virginicasetosa", "versicolor"):
        scatter.add(record)
    scatter.save(Path("iris.png"))

Which series a record belongs to is known from its topic and partition. Memory does not grow with the topic: of a long
series a random choice is kept. Whatever is not in the picture is counted: `left_out` says it in words.
matplotlib is loaded when a picture is wanted, and only then.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.kafka.read.records import Record
from headrace.kafka.write import field as field_of
from headrace.kafka.write import parse_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headrace.kafka.read.options import Batch

#: More cannot be told apart in a picture of this size.
POINTS_PER_SERIES = 50_000
_INCHES = (8.0, 6.0)
_DOTS_PER_INCH = 120


@dataclass(frozen=True)
class Series:
    """Records that are drawn in one colour: those of a topic, or of some of its partitions."""

    name: str
    topic: str
    partitions: tuple[int, ...] = ()
    colour: str | None = None

    @classmethod
    def parse(cls, text: str) -> Series:
        """`setosa:blue=virginicasetosa/1`; partitions as in a route (`iris/0+1`); name and colour may be left out."""
        label, equals, target = text.rpartition("=")
        topic, partitions = parse_target(target, "")
        name, colon, colour = label.rpartition(":")
        if not topic or (equals and not label) or (colon and not (name and colour)):
            raise UsageError(
                f"invalid series: {text!r}",
                hint="NAME:COLOUR=TOPIC/PARTITION, as in setosa:blue=iris/1; NAME=TOPIC; or TOPIC",
            )
        return cls((name or colour) or target, topic, partitions, colour if colon else None)

    def has(self, record: Record) -> bool:
        return record.topic == self.topic and (not self.partitions or record.partition in self.partitions)


@dataclass
class _Points:
    """The points of a series: all of them, or a random choice in which each had the same chance."""

    x: array[float] = field(default_factory=lambda: array("d"))
    y: array[float] = field(default_factory=lambda: array("d"))
    seen: int = 0

    def add(self, x: float, y: float, most: int, draw: random.Random) -> None:
        self.seen += 1
        if len(self.x) < most:
            self.x.append(x)
            self.y.append(y)
            return
        place = draw.randrange(self.seen)
        if place < most:
            self.x[place], self.y[place] = x, y


class Scatter:
    """Takes records, draws them. `x` and `y` are fields of the value: `speed`, `trip.meters`, or `0` in an array."""

    def __init__(
        self,
        x: str,
        y: str,
        series: Sequence[Series],
        *,
        labels: tuple[str, str] | None = None,
        points_per_series: int = POINTS_PER_SERIES,
    ) -> None:
        self.x, self.y = x, y
        self.series = tuple(series)
        self.labels = labels or (x, y)
        self.records = 0
        #: Records that belong to no series, and such whose two fields are not both numbers.
        self.of_no_series = 0
        self.without_numbers = 0
        self._most = points_per_series
        self._points = {one: _Points() for one in self.series}
        # The same records make the same picture.
        self._random = random.Random(1)  # noqa: S311 - a choice of points, not of secrets
        self._why_not: HeadraceError | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Points by series, those that are not drawn too."""
        return {one.name: self._points[one].seen for one in self.series}

    @property
    def left_out(self) -> list[str]:
        """What the picture does not show, in words; empty if it shows every record."""
        undrawn = sum(points.seen - len(points.x) for points in self._points.values())
        said = {
            f"{undrawn:,} points of long series: a random choice of {self._most:,} stands for each": undrawn,
            f"{self.without_numbers:,} records without a number in {self.x} or {self.y}": self.without_numbers,
            f"{self.of_no_series:,} records that belong to no series": self.of_no_series,
        }
        return [words for words, count in said.items() if count]

    def see(self, batch: Batch) -> None:
        for record in batch.records():
            self.add(record)

    def add(self, record: Record) -> None:
        """The record is a point of its series, or counted as left out."""
        self.records += 1
        mine = next((one for one in self.series if one.has(record)), None)
        if mine is None:
            self.of_no_series += 1
            return
        try:
            value = msgspec.json.decode(record.value_shown or b"")
            x, y = float(field_of(value, self.x)), float(field_of(value, self.y))
        except (msgspec.MsgspecError, RecursionError, HeadraceError, TypeError, ValueError) as error:
            self.without_numbers += 1
            self._why_not = self._why_not or (error if isinstance(error, HeadraceError) else None)
            return
        if math.isfinite(x) and math.isfinite(y):
            self._points[mine].add(x, y, self._most, self._random)
        else:
            self.without_numbers += 1

    def require_drawable(self, path: Path) -> None:
        """The picture can be written there, in these colours: better known before a long reading than after it."""
        from matplotlib.colors import is_color_like
        from matplotlib.figure import Figure

        kinds = Figure().canvas.get_supported_filetypes()
        if path.suffix.removeprefix(".").lower() not in kinds:
            raise UsageError(f"{path} is not a picture file name", hint="a name that ends in .png, .svg or .pdf")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written", why=f"there is no folder {path.parent}")
        for one in self.series:
            if one.colour is not None and not is_color_like(one.colour):
                raise UsageError(f"unknown colour: {one.colour!r}", hint="a name such as red, or #c02020")

    def save(self, path: Path) -> None:
        """The picture is in the file, whole. Without any point there is none, and that is an error."""
        if not any(points.seen for points in self._points.values()):
            raise Failed(
                f"there is nothing to draw, so {path} was not created",
                why=self._why_not.problem if self._why_not else "; ".join(self.left_out) or "no record was read",
                hint="the fields of the value that hold the numbers: --plot-x FIELD --plot-y FIELD",
            )
        from matplotlib.figure import Figure

        figure = Figure(figsize=_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        self._draw_into(figure.add_subplot())
        part = path.with_name(f".{path.stem}.part{path.suffix}")
        try:
            figure.savefig(part)
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise Failed(f"{path} cannot be written", why=error.strerror or str(error)) from error

    def _draw_into(self, axes: Axes) -> None:
        for one in self.series:
            points = self._points[one]
            # Points that lie upon each other show as darker ones.
            size = 30.0 if len(points.x) < 2_000 else 6.0
            axes.scatter(
                points.x, points.y, s=size, alpha=0.6, linewidths=0, c=one.colour, label=f"{one.name} ({points.seen:,})"
            )
        axes.set_xlabel(self.labels[0])
        axes.set_ylabel(self.labels[1])
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(", ".join(dict.fromkeys(one.topic for one in self.series)), loc="left")
