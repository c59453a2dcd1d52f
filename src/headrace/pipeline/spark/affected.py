"""Which keys of a view may have changed, found from the rows of its tables that did.

A change of one table T, all others as they are, can only change rows of the query that stem from changed rows of T. So
the query's own plan is run with the changed rows in the place of T, and the distinct keys of what comes out are the
keys to recompute. With several changed tables, one after the other is changed: those before it are as they are now,
those behind it as they were. A table that is named twice counts as two.

Too many keys cost time, too few would be wrong. So every step may give more rows than the query has, never fewer:

    aggregates, windows    give their groups: what is computed of a group is not asked for
    conditions on these    are left out
    outer joins            give each row with its partners, and without

That fails where the key, or a column that tables are joined by, is itself computed of a group, and where a row depends
on others without a group (LIMIT). Then `NotIncremental` says why, and the view is computed in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.spark.internals import Plan, has_aggregate, id_of, ids_of, null_like, plan_of, renamed

#: Steps that make of a row what they make of it, whatever other rows there are.
_ROW_BY_ROW = {"Generate", "Expand"}
#: Steps that change neither columns nor rows, or only leave out repeated ones.
_TRANSPARENT = {
    "SubqueryAlias", "Sort", "Distinct", "ResolvedHint", "Repartition", "RepartitionByExpression",
    "RebalancePartitions",
}  # fmt: skip
_WORDS = {
    "GlobalLimit": "LIMIT", "LocalLimit": "LIMIT", "Limit": "LIMIT", "Offset": "OFFSET", "Tail": "LIMIT",
    "Except": "EXCEPT", "Intersect": "INTERSECT", "Sample": "TABLESAMPLE", "LateralJoin": "LATERAL",
    "UnionLoop": "a recursive WITH",
}  # fmt: skip


_JOINS = {"INNER", "CROSS", "LEFT OUTER", "RIGHT OUTER", "FULL OUTER", "LEFT SEMI", "LEFT ANTI"}
_LEAVES = {"View", "LocalRelation", "OneRowRelation", "Range"}


class NotIncremental(Exception):
    """The view has to be computed in full; the text says why."""


@dataclass(frozen=True)
class TableState:
    """A table as it was, as it is, and the rows by which these differ; each call gives a frame of its own."""

    before: Callable[[], DataFrame]
    after: Callable[[], DataFrame]
    #: None if nothing has changed.
    changed: Callable[[], DataFrame] | None


@dataclass(eq=False)
class _Node:
    """A step of the plan, and which tables lie below it, by their number. What Java says of it is asked for once."""

    plan: Plan
    kind: str
    children: tuple[_Node, ...]
    tables: tuple[int, ...]

    @cached_property
    def output(self) -> dict[int, Any]:
        """Its columns by their ids."""
        return {id_of(column): column for column in self.plan.output}

    @cached_property
    def references(self) -> set[int]:
        return self.plan.references

    @cached_property
    def results(self) -> dict[int, tuple[Any, set[int]]]:
        """Of a step that names its columns: each by its id, with the ids that it is made from.

        Of an aggregate and a window: only what keeps groups apart.
        """
        if self.kind == "Window":
            found = [each for each in self.plan.groups if each.getClass().getSimpleName() == "AttributeReference"]
        else:
            found = [each for each in self.plan.results if not has_aggregate(self.plan.spark, each)]
        return {id_of(each): (each, ids_of([each])) for each in found}

    @cached_property
    def group_references(self) -> set[int]:
        return ids_of(self.plan.groups)

    @cached_property
    def conditions(self) -> list[tuple[Any, set[int]]]:
        """Of a filter: what has to hold, each with the ids that it uses."""
        return [(each, ids_of([each])) for each in self.plan.conditions]

    def needed_below(self, needed: set[int]) -> list[set[int]]:
        """The columns of each child without which those cannot be given; `NotIncremental` if they cannot at all."""
        if self.kind in _TRANSPARENT or self.kind == "Filter":
            return [needed]
        if self.kind == "Project":
            return [_made_from(self.results, needed)]
        if self.kind in {"Aggregate", "Window"}:
            self._check_groups(needed)
            return [self.group_references | _made_from(self.results, needed)]
        if self.kind == "Join":
            if self.plan.join_kind not in _JOINS:
                raise NotIncremental(f"it has {self.plan.join_kind} JOIN")
            return [(needed | self.references) & set(child.output) for child in self.children]
        if self.kind == "Union":
            return [
                {own for own, column in zip(c.output, self.output, strict=True) if column in needed}
                for c in self.children
            ]
        if self.kind in _ROW_BY_ROW:
            return [set(child.output) for child in self.children]
        if self.kind in _LEAVES:
            return []
        raise NotIncremental(f"it has {_WORDS.get(self.kind, self.kind)}")

    def united(self, part: _Node, needed: set[int]) -> list[tuple[Any, Any]]:
        """Of a union: which column of a part is which needed column of the whole."""
        pairs = zip(part.plan.output, self.plan.output, strict=True)
        return [(own, column) for own, column in pairs if id_of(column) in needed]

    def _check_groups(self, needed: set[int]) -> None:
        aggregate = self.kind == "Aggregate"
        if not self.plan.groups:
            what = "an aggregate without GROUP BY" if aggregate else "a window without PARTITION BY"
            raise NotIncremental(f"it has {what}: every row depends on all others")
        if foreign := needed - set(self.results):
            names = ", ".join(column.name() for at, column in self.output.items() if at in foreign)
            what = "computed by an aggregate" if aggregate else "not in the PARTITION BY of a window"
            raise NotIncremental(f"its keys depend on {names}, which is {what}")

    def check(self, needed: set[int]) -> None:
        """Those columns can be given, here and in all steps below."""
        for child, below in zip(self.children, self.needed_below(needed), strict=False):
            child.check(below)

    def can(self, needed: set[int]) -> bool:
        try:
            self.check(needed)
        except NotIncremental:
            return False
        return True


def _made_from(results: Mapping[int, tuple[Any, set[int]]], needed: set[int]) -> set[int]:
    return set().union(*[results[each][1] for each in needed if each in results])


class ChangeTracker:
    """The plan of a view's query, from which the keys that a change touches are found."""

    def __init__(self, plan: Plan, key: tuple[str, ...]) -> None:
        self.spark = plan.spark
        #: The tables in the order in which the plan names them.
        self.tables: list[str] = []
        if plan.contains("PLAN_EXPRESSION"):
            raise NotIncremental("it has a subquery in an expression (IN, EXISTS, or a single value)")
        plan = plan.inlined if plan.contains("CTE") else plan
        self._root = self._read(plan)
        self._key = [next(column for column in plan.output if column.name() == name) for name in key]
        self._needed = {id_of(column) for column in self._key}
        # Whether it can be done does not depend on the data.
        self._root.check(self._needed)

    def columns_used(self, table: str) -> list[str]:
        """The columns of the table on which the query depends."""
        leaves = [leaf for leaf in _below(self._root) if leaf.kind == "View" and leaf.plan.table == table]
        return list(dict.fromkeys(c.name() for leaf in leaves for at, c in leaf.output.items() if at in self._used))

    @cached_property
    def _used(self) -> set[int]:
        steps = [node for node in _below(self._root) if node.kind != "View"]
        return set(self._root.output).union(*[node.references for node in steps])

    def affected_keys(self, states: Mapping[str, TableState]) -> DataFrame | None:
        """The keys whose rows may differ, each once; None if no table has changed."""
        found = [
            _Walk(self.spark, at, states).rows(self._root, self._needed).project(list(self._key))
            for at, table in enumerate(self.tables)
            if states[table].changed
        ]
        return found[0].union(*found[1:]).distinct().frame if found else None

    def _read(self, plan: Plan) -> _Node:
        kind, first = plan.kind, len(self.tables)
        if kind == "View":
            self.tables.append(plan.table)
            return _Node(plan, kind, (), (first,))
        children = tuple(self._read(child) for child in plan.children)
        return _Node(plan, kind, children, tuple(range(first, len(self.tables))))


def _below(node: _Node) -> list[_Node]:
    return [node, *[found for child in node.children for found in _below(child)]]


def check_repeatable(frame: DataFrame) -> Plan:
    """The plan of a query that gives the same rows for the same tables."""
    plan = plan_of(frame)
    if plan is None:
        raise NotIncremental("this version of Spark does not show its plans")
    if plan.contains("CURRENT_LIKE") or not plan.is_deterministic:
        raise NotIncremental("it has a function whose result is not the same every time (current_date, rand …)")
    return plan


class _Walk:
    """The rows that a change of the table number `at` can touch."""

    def __init__(self, spark: SparkSession, at: int, states: Mapping[str, TableState]) -> None:
        self.spark = spark
        self.at = at
        self.states = states

    def rows(self, node: _Node, needed: set[int]) -> Plan:
        """At least the rows of this step, with the columns that are needed and perhaps others."""
        kind = node.kind
        if kind == "View":
            return self._table(node)
        if kind in _LEAVES:
            return node.plan
        if kind == "Filter":
            return self._filtered(node, needed)
        if kind == "Join":
            return self._joined(node, needed)
        if kind == "Union":
            return self._union(node, needed)
        (child,), (below,) = node.children, node.needed_below(needed)
        rows = self.rows(child, below)
        if kind in _TRANSPARENT:
            return rows
        if kind in _ROW_BY_ROW:
            return node.plan.on(rows)
        rows = rows.project([node.results[each][0] for each in sorted(needed)])
        return rows if kind == "Project" else rows.distinct()

    def _table(self, node: _Node) -> Plan:
        (number,), state = node.tables, self.states[node.plan.table]
        if number == self.at:
            assert state.changed is not None
            return as_columns(state.changed(), node.plan)
        return as_columns(state.after() if number < self.at else state.before(), node.plan)

    def _filtered(self, node: _Node, needed: set[int]) -> Plan:
        """Conditions on what is computed of a group are left out."""
        (child,) = node.children
        kept = [(condition, used) for condition, used in node.conditions if child.can(needed | used)]
        return self.rows(child, needed.union(*[used for _, used in kept])).filter([each for each, _ in kept])

    def _union(self, node: _Node, needed: set[int]) -> Plan:
        """Only the part that has the changed table; the columns of all parts are those of the union."""
        parts = []
        for child, below in zip(node.children, node.needed_below(needed), strict=True):
            if self.at in node.tables and self.at not in child.tables:
                continue
            rows, pairs = self.rows(child, below), node.united(child, needed)
            parts.append(rows.project([renamed(self.spark, own, column) for own, column in pairs]))
        return parts[0].union(*parts[1:])

    def _joined(self, node: _Node, needed: set[int]) -> Plan:
        kind, condition = node.plan.join_kind, node.plan.condition
        below = node.needed_below(needed)
        columns = [[child.output[at] for at in sorted(own)] for child, own in zip(node.children, below, strict=True)]
        left, right = (
            self.rows(child, own).project(wanted)
            for child, own, wanted in zip(node.children, below, columns, strict=True)
        )
        if kind in {"LEFT SEMI", "LEFT ANTI"}:
            # A row without partners may have had one: which ones is asked only if the partners have changed.
            alone = kind == "LEFT ANTI" and self.at not in node.children[1].tables
            return left if alone else left.join(right, "LeftSemi", condition)
        parts = [left.join(right, "Inner", condition).project([*columns[0], *columns[1]])]
        if kind in {"LEFT OUTER", "FULL OUTER"}:
            parts.append(self._alone(left, right, node, 0, columns))
        if kind in {"RIGHT OUTER", "FULL OUTER"}:
            parts.append(self._alone(right, left, node, 1, columns))
        return parts[0].union(*parts[1:])

    def _alone(self, rows: Plan, others: Plan, node: _Node, side: int, columns: list[list[Any]]) -> Plan:
        """The rows of one side with nulls for the other. If that other has changed, only rows that have a partner."""
        if self.at in node.children[1 - side].tables:
            rows = rows.join(others, "LeftSemi", node.plan.condition)
        nulls = [null_like(self.spark, column) for column in columns[1 - side]]
        return rows.project([*columns[0], *nulls] if side == 0 else [*nulls, *columns[1]])


def as_columns(frame: DataFrame, like: Plan) -> Plan:
    """The rows of the frame as the columns of a table in a plan, found by their names; others are null."""
    plan = plan_of(frame)
    assert plan is not None
    by_name = {column.name(): column for column in plan.output}
    return plan.project(
        [
            renamed(like.spark, by_name[c.name()], c) if c.name() in by_name else null_like(like.spark, c)
            for c in like.output
        ]
    )
