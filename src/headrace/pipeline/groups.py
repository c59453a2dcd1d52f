"""Which group of an aggregate cannot be computed, and why.

What an aggregate is computed from was tried with each row (`demands.py`). What is left to throw is a sum that
overflows, a division of sums, a window function: that belongs to a group, not to a record, so there is none to set
aside. The run stops, and says which table, value and group it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import Failed
from headrace.pipeline.declaration import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.sinks import Batch

#: The class of all mistakes that lie in data, by SQL's standard: overflow, division by zero, a text that is no number.
_DATA = re.compile(r"\[[A-Z_.]+\]\s*((?:(?!\[[A-Z_.]+\]).)*?)\s*SQLSTATE: 22", re.DOTALL)
_HASH_BITS = 40
HINT = (
    "try_sum, try_divide, try_cast and a larger type (cast(amount as decimal(38))) do not throw; "
    "a rule in expect sets records aside before they come here"
)

#: The aggregate of those rows, by those of its values.
Computed = Callable[["DataFrame", "tuple[str, ...]"], "DataFrame"]


def thrown(error: Exception) -> str | None:
    """What an expression said when it threw; None if the error is another one."""
    found = _DATA.search(str(error))
    return " ".join(found[1].split()) if found else None


def failure(sink: Sink, batch: Batch, said: str, rows: DataFrame, computed: Computed) -> Failed:
    """The error that names table, value and group."""
    aggregate = sink.aggregate
    assert aggregate is not None
    every = tuple(aggregate.values)
    group = _group(rows, aggregate.by, lambda some: _throws(computed(some, every))) if every else None
    told = ", ".join(f"{name} = {value}" for name, value in group.items()) if group else ""
    some = _of(rows, group) if group else rows
    guilty = [f"{name} = {aggregate.values[name]}" for name in every if _throws(computed(some, (name,)))]
    return Failed(
        f"{batch.declaration.place(*batch.declaration.path_of(sink), 'aggregate')}: {sink.name} cannot be computed"
        + (f" for {told}" if told else ""),
        why="; ".join([*guilty, said]) + f"; batch {batch.number} is taken again at the next start",
        hint=HINT,
    )


def _group(rows: DataFrame, by: tuple[str, ...], throws: Callable[[DataFrame], bool]) -> dict[str, object] | None:
    """The key of a group that throws: halves of the keys are tried until one is left."""
    from pyspark.sql import functions as F

    keys = [F.col(f"`{name}`") for name in by]
    bits = F.xxhash64(*keys) if by else None
    if bits is None or not throws(rows):
        return None
    for at in range(_HASH_BITS):
        found = rows.select(*keys).distinct().limit(2).collect()
        if len(found) == 1:
            return dict(found[0].asDict())
        half = bits.bitwiseAND(F.lit(1 << at)) == 0
        rows = rows.where(half) if throws(rows.where(half)) else rows.where(~half)
    return None


def _of(rows: DataFrame, group: dict[str, object]) -> DataFrame:
    from pyspark.sql import functions as F

    for name, value in group.items():
        rows = rows.where(F.col(f"`{name}`").eqNullSafe(F.lit(value)))
    return rows


def _throws(made: DataFrame) -> bool:
    try:
        made.write.format("noop").mode("overwrite").save()
    except Exception as error:
        if thrown(error) is None:
            raise
        return True
    return False
