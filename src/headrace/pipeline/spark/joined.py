"""Rows of two topics joined by Spark's stateful operator, and what a sink can be given of them.

The operator keeps the rows of both sides until the watermark has passed the last time at which a partner could come. It
is always asked for a full outer join: so every row comes out, in pairs or, when its time is over, alone. What is
written of that (`inner`, `left`) is decided here; what came out alone is counted. Each row carries the identity of the
records that it was made of, as the structs `_left` and `_right`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from headrace.pipeline.declare.declaration import Declaration, Join, interval, span_s
from headrace.pipeline.spark.demands import Demands

if TYPE_CHECKING:
    from headrace.pipeline.spark.classify import Classifier

_IDENTITY = ("_topic", "_partition", "_offset", "_timestamp")


class Joined:
    """The join of a declaration: of rows that `left` and `right` have classified."""

    def __init__(self, declaration: Declaration, left: Classifier, right: Classifier) -> None:
        assert declaration.join is not None
        self.declaration = declaration
        self.join: Join = declaration.join
        self.left = left
        self.right = right
        self.demands = Demands(declaration, left.tried)
        self._sides: tuple[StructType, StructType] | None = None

    # -- before a run --------------------------------------------------------------------------------------------------

    def check(self, left: StructType) -> list[tuple[str, StructType]]:
        """The schemas of the other side and of the joined rows; what does not fit is an error with its line."""
        steps = self.right.check()
        right = steps[-1][1]
        for name in self.join.on:
            self._check_key(name, left, right)
        twice = [name for name in right.names if name in left.names and name not in self.join.on]
        if twice:
            raise self.declaration.wrong(
                f"both sides of the join have a column {twice[0]}", "join", "select",
                hint=f'another name for one of them, in select = {{ {twice[0]}_2 = "{twice[0]}", … }}',
            )  # fmt: skip
        self._sides = left, right
        return [*[(f"join {name}", schema) for name, schema in steps], ("join", self.schema)]

    def _check_key(self, name: str, left: StructType, right: StructType) -> None:
        topics = {", ".join(self.declaration.topics): left, self.join.other.topics[0]: right}
        for topic, columns in topics.items():
            if name not in columns.names:
                raise self.declaration.wrong(
                    f"the join is on {name}, which {topic} does not have", "join", "on",
                    why=f"its columns are {', '.join(columns.names)}", hint="select can make or rename a column",
                )  # fmt: skip
        types = [columns[name].dataType.simpleString() for columns in (left, right)]
        if types[0] != types[1]:
            said = " and ".join(f"{kind} in {topic}" for topic, kind in zip(topics, types, strict=True))
            raise self.declaration.wrong(
                f"the join is on {name}, which is {said}", "join", "on",
                hint=f'{name} = "cast({name} as {types[0]})" in the select of the join',
            )  # fmt: skip

    @property
    def schema(self) -> StructType:
        """The columns of a joined row: those of the left side, then those of the right that are not joined on."""
        assert self._sides is not None
        left, right = self._sides
        rest = [field for field in right.fields if field.name not in self.join.on]
        return StructType([StructField(field.name, field.dataType) for field in (*left.fields, *rest)])

    def check_demands(self) -> None:
        """What sinks demand of a row can be asked of a joined one."""
        from headrace.pipeline.spark.classify import errors_at, nothing

        rows = nothing(self.left.spark, StructType([StructField("_columns", self.schema)]))
        with errors_at(self.declaration, "into"):
            self.demands.check(rows)

    # -- the stream ----------------------------------------------------------------------------------------------------

    def stream(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """The streams of records of both topics, joined."""
        assert self.declaration.watermark is not None
        delay = interval(self.declaration.watermark)
        keys = {name: f"_on_{name}" for name in self.join.on}
        rows = self._side(self.left, left, "_left", {}).withWatermark("_left_time", delay)
        others = self._side(self.right, right, "_right", keys).withWatermark("_right_time", delay)
        return rows.join(others, F.expr(self._condition(keys)), "full_outer")

    def _side(self, classifier: Classifier, raw: DataFrame, name: str, renamed: Mapping[str, str]) -> DataFrame:
        good = classifier.classify(raw).where("_outcome = 'written'")
        columns = [field for field in good.columns if not field.startswith("_")]
        return good.select(
            F.struct(*_IDENTITY).alias(name), F.col(f"`{classifier.declaration.time_column}`").alias(f"{name}_time"),
            *[F.col(f"`{field}`").alias(renamed.get(field, field)) for field in columns],
        )  # fmt: skip

    def _condition(self, keys: Mapping[str, str]) -> str:
        """Rows without a key have no partner: asked for that first, the operator gives them back at once."""
        same = [f"`{left}` = `{right}`" for left, right in keys.items()]
        known = [f"`{name}` is not null" for pair in keys.items() for name in pair]
        span = f"interval {self.within_ms} milliseconds"
        near = [f"_left_time >= _right_time - {span}", f"_left_time <= _right_time + {span}"]
        return " and ".join([*same, *known, *near])

    @cached_property
    def within_ms(self) -> int:
        return round(span_s(self.join.within) * 1000)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def rows(self, made: DataFrame) -> DataFrame:
        """What the operator gave for a batch, with `_which` (pair, left, right), `_written`, and what sinks say to it.

        Identity and event time of a joined row are those of the left record.
        """
        which = F.when(F.col("_right").isNull(), "left").when(F.col("_left").isNull(), "right").otherwise("pair")
        columns = F.struct(*[F.col(f"`{name}`") for name in self.schema.names])
        shaped = made.select("_left.*", "_left", "_right", which.alias("_which"), columns.alias("_columns"))
        checked = self.demands.check(shaped)
        wanted = ["pair", "left"] if self.join.kind == "left" else ["pair"]
        return checked.select(
            *_IDENTITY, "_left", "_right", "_which", F.col("_which").isin(wanted).alias("_written"), "_unfit",
            *self.demands.counts, "_columns.*",
        )  # fmt: skip
