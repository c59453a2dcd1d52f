"""`explode` and its relatives in `select`: a record becomes a row for each element of an array or a map.

    item        = "explode(items)"       the elements; of a map, a struct of key and value
    "pos, item" = "posexplode(items)"    several columns, by position: Spark's `as (pos, item)`
    "sku, price" = "inline(items)"       the fields of an array of structs; one name takes them as a struct

The array is tried like any expression, so one that throws is a dead letter. A record whose array is null or empty has
no row and counts as filtered; `explode_outer`, `posexplode_outer` and `inline_outer` make one of nulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.pipeline.declare.declaration import Declaration
from headrace.pipeline.spark import internals

_FUNCTIONS = {"explode", "posexplode", "inline"}
#: The column that says of a row that there was no element.
EMPTY = "_empty"


@dataclass(frozen=True)
class Generator:
    """A column, or several, made by `explode` or one of its relatives."""

    key: str
    text: str
    function: str
    outer: bool
    argument: str

    @property
    def names(self) -> list[str]:
        """The columns that it makes."""
        return [name.strip() for name in self.key.split(",")]

    def rows(self, declaration: Declaration, frame: DataFrame, array: str) -> tuple[DataFrame, Column]:
        """A row of `frame` for each element of the column, or one that is `_empty`; and the columns of its names."""
        kind = frame.select(array).schema[0].dataType
        columns = self._columns(declaration, kind)
        elements = F.map_entries(array) if isinstance(kind, MapType) else F.col(array)
        made = frame.select(*frame.columns, F.posexplode_outer(elements).alias("_pos", "_element"))
        none = F.lit(False) if self.outer else F.col("_pos").isNull()
        return made.withColumn(EMPTY, none), F.struct(*[column.alias(name) for name, column in columns.items()])

    def _columns(self, declaration: Declaration, kind: DataType) -> Mapping[str, Column]:
        """What each of its names is, of the element."""
        parts, names = self._parts(declaration, kind), self.names
        if len(names) == 1:
            whole = next(iter(parts.values())) if len(parts) == 1 else F.struct(*[c.alias(n) for n, c in parts.items()])
            return {names[0]: whole}
        if len(names) != len(parts):
            raise declaration.wrong(
                f"{self.key} are {len(names)} names for {self.text}", "select", self.key,
                why=f"it makes {len(parts)} columns: {', '.join(parts)}",
            )  # fmt: skip
        return dict(zip(names, parts.values(), strict=True))

    def _parts(self, declaration: Declaration, kind: DataType) -> dict[str, Column]:
        """The columns that Spark makes, by its own names."""
        element = F.col("_element")
        pos = {"pos": F.col("_pos")} if self.function == "posexplode" else {}
        if isinstance(kind, MapType) and self.function != "inline":
            return {**pos, "key": element["key"], "value": element["value"]}
        inner = kind.elementType if isinstance(kind, ArrayType) else None
        if self.function == "inline" and isinstance(inner, StructType):
            return {name: element.getField(name) for name in inner.names}
        if inner is None or self.function == "inline":
            wanted = "an array of structs" if self.function == "inline" else "an array or a map"
            raise declaration.wrong(
                f"{self.text}: {self.argument} is {kind.simpleString()}",
                "select",
                self.key,
                hint=f"{wanted} is expected",
            )
        return {**pos, "col": element}


def generator(spark: SparkSession, declaration: Declaration) -> Generator | None:
    """The one that `select` has, if any; a sink's select has none."""
    for sink in declaration.sinks:
        for key, text in sink.select.items():
            if _generator(spark, key, text):
                raise declaration.wrong(
                    f"{text} in the select of a sink", *declaration.path_of(sink), "select",
                    why="all sinks of a pipeline get the same rows",
                    hint="put it into the pipeline's select; a second pipeline can write the records as they are",
                )  # fmt: skip
    found = [made for key, text in declaration.select.items() if (made := _generator(spark, key, text))]
    if len(found) > 1:
        raise declaration.wrong(
            f"select has {found[0].text} and {found[1].text}", "select", found[1].key,
            why="each would multiply the rows of the other", hint="arrays_zip(a, b) explodes two arrays side by side",
        )  # fmt: skip
    return found[0] if found else None


def _generator(spark: SparkSession, key: str, text: str) -> Generator | None:
    if "(" not in text or text.split("(")[0].strip().lower().removesuffix("_outer") not in _FUNCTIONS:
        return None
    from pyspark.errors import PySparkException

    try:
        node = internals.parse(spark, text)
    except PySparkException:  # is reported with its line when the columns are checked
        return None
    if node.kind != "UnresolvedFunction" or len(node.arguments) != 1:
        return None
    name = node.function
    return Generator(key, text, name.removesuffix("_outer"), name.endswith("_outer"), node.arguments[0].text)
