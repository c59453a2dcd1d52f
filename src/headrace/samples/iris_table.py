"""The Iris table: 150 flowers of three classes, measured in centimetres by Anderson, published by Fisher in 1936.

The figures are those of the publication (two rows of a widely copied file differ from it).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from typing import NamedTuple

from headrace.samples.sample import Chunk, Column, Format, Sample

_NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width", "class")


class Iris(NamedTuple):
    """One flower."""

    sepal_length: float
    sepal_width: float
    petal_length: float
    petal_width: float
    name: str


def flowers() -> list[Iris]:
    """The whole table, in its own order: 50 setosa, 50 versicolor, 50 virginica."""
    lines = files("headrace.samples").joinpath("iris.csv").read_text(encoding="ascii").splitlines()[1:]
    rows = (line.split(",") for line in lines)
    return [Iris(float(a), float(b), float(c), float(d), name) for a, b, c, d, name in rows]


def iris(records: int = 150) -> Sample:
    """The first so many rows of the table."""
    columns = tuple(Column(name, quoted=name == "class") for name in _NAMES)
    formats = (Format.CSV, Format.NDJSON, Format.ARRAY)
    return Sample(columns, partial(_chunks, records), seed=0, formats=formats)


def _chunks(records: int) -> Iterator[Chunk]:
    rows = flowers()[:records]
    if rows:
        yield list(zip(*rows, strict=True))
