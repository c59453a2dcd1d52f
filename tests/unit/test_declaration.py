"""What a declaration may not ask for, found without Spark and told with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config import load
from headrace.errors import ConfigError, HeadraceError
from headrace.pipeline.declare.declaration import Declaration, Deduplicate, Sink
from headrace.pipeline.declare.reading import declared, read
from headrace.pipeline.pipeline import Pipeline

_REALTIME = """
[pipelines.p]
from         = "a"
decode       = { json = "n int" }
trigger      = "realtime"
dead_letters = "a.dead"
into         = { topic = "b" }
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{ topic = "b" }', '{ delta = "b" }', "line 7: realtime writes to topics only"),
        ('{ topic = "b" }', '{ console = true }', "line 7: realtime writes to topics only"),
        ('{ topic = "b" }', '[{ topic = "b" }, { topic = "c" }]', "line 7: realtime has one sink"),
        ('{ topic = "b" }', '{ topic = "b", where = "n > 1" }', "line 7: the sink of a realtime pipeline has no where"),
        ('{ topic = "b" }', '{ topic = "b", format = "avro" }', "line 7: realtime writes JSON"),
        ('dead_letters = "a.dead"', "", "realtime needs a topic for its dead letters"),
        ('"realtime"', '"realtime"\ndeduplicate = "n"', "line 5: realtime keeps no state"),
        ('"realtime"', '"realtime"\nexpect = { r = { rule = "n > 1", action = "fail" } }', "cannot stop a realtime"),
    ],
)  # fmt: skip
def test_what_real_time_mode_cannot_do(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(_REALTIME, encoding="utf-8")
    Pipeline.from_file(file, "p")
    file.write_text(_REALTIME.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        Pipeline.from_file(file, "p")


_TABLES = """
[pipelines.p]
from         = ["a", "b"]
decode       = { json = "n int, m int" }
deduplicate  = ["n"]
dead_letters = "a.dead"
[[pipelines.p.into]]
delta = "t/rows"
[[pipelines.p.into]]
delta = "t/sums"
aggregate = { by = ["n"], mode = "recompute", values = { m = "sum(m)" } }
[[pipelines.p.into]]
topic = "out"
key   = "n"
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["n"]\ndead', '[]\ndead', "line 5: deduplicate names no column"),
        ('["n"]\ndead', '{ within = "1 day" }\ndead', "line 5: deduplicate names no column"),
        ('"a.dead"', '"b"', "line 6: the topic b is read and written"),
        ('"a.dead"', '{ topic = "out" }', "line 6: out is written twice"),
        ('"a.dead"', '{ table = "./t/rows/" }', "line 6: ./t/rows/ is written twice"),
        ('topic = "out"', 'topic = "a"', "line 13: the topic a is read and written"),
        ('delta = "t/sums"', 'delta = "t/../t/rows"', "line 10: t/../t/rows is written twice"),
        ('topic = "out"\nkey   = "n"', 'parquet = "t/rows"', "line 13: t/rows is written twice"),
        ('delta = "t/rows"', 'delta = "out"', "line 13: two sinks are called out"),
        ('delta = "t/rows"', 'delta = "dead letters"', "line 8: a sink is called dead letters"),
        ('delta = "t/sums"', 'delta = "file://<here>/t%2Frows"', "line 10: file://<here>/t%2Frows is written twice"),
        ('deduplicate  = ["n"]', 'select = { "pos, _x" = "posexplode(x)" }', "line 5: select.pos, _x begins with"),
        ('by = ["n"], mode', "mode", "line 11: mode recompute needs by"),
        ('[[pipelines.p.into]]\ndelta = "t/rows"\n', "", "line 7: mode recompute needs the rows"),
        ('delta = "t/rows"', 'delta = "t/rows"\nkey = "n"', "line 9: key belongs to a topic"),
        ('key   = "n"', 'partition_by = "n"', "line 14: partition_by belongs to a delta or parquet"),
        ('{ m = "sum(m)" }', '{ _m = "sum(m)" }', "line 11: into.aggregate.values._m begins with an underscore"),
        ('by = ["n"]', 'by = ["n", "n"]', "line 11: into.aggregate.by names something twice"),
        ('by = ["n"]', "by = 5", "line 11: into.aggregate.by is 5"),
        ('delta = "t/rows"', 'delta = "t/rows"\npartition_by = 5', "line 9: into.partition_by is 5"),
        ('delta = "t/rows"', 'delta = "t/rows"\nwhere = 5', "line 9: into.where is 5"),
        ('["a", "b"]', "5", "line 3: from is 5"),
        ('["n"]\ndead', '7\ndead', "line 5: deduplicate.by is 7"),
        ('topic = "out"', 'topic = "out"\nupsert = { key = ["n"] }', "line 14: upsert belongs to a delta"),
        ('key   = "n"', 'changes = { key = ["n"] }', "line 14: changes belongs to a delta"),
        ('delta = "t/rows"', 'delta = "x"\nchanges = { key = ["n"] }', "line 10: mode recompute needs the rows"),
        ('{ m = "sum(m)" } }', '{ m = "sum(m)" } }\nupsert = { key = ["n"] }', "line 9: a sink has"),
        ('delta = "t/rows"', 'delta = "t/rows"\nchanges = { sequence = "m" }', "line 7: changes need a key"),
        ('delta = "t/rows"', 'delta = "t/rows"\nchanges = { key = "n", history = true }', "line 7: a history needs a"),
        ('delta = "t/rows"', 'delta = "t/rows"\nchanges = { key = "n", history = 1 }', "line 9: history is 1"),
        ('delta = "t/rows"', 'delta = "t/rows"\nupsert = { key = "n", history = true }', "line 9: unknown setting"),
        ('delta = "t/rows"', 'delta = "x"\nupsert = { key = "n" }\nchanges = { key = "n" }', "line 9: a sink has"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_with_its_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(_TABLES, encoding="utf-8")
    Pipeline.from_file(file, "p")
    assert old in _TABLES
    file.write_text(_TABLES.replace(old, new.replace("<here>", str(tmp_path))), encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        Pipeline.from_file(file, "p")
    assert words.replace("<here>", str(tmp_path)) in told.value.problem


_LOOKUPS = """
[pipelines.p]
from   = "a"
decode = { json = "n int" }
into   = { delta = "t/rows" }
[[pipelines.p.lookup]]
table  = "t/zones"
on     = ["n"]
select = { name = "name" }
[[pipelines.p.lookup]]
topic  = "names"
on     = { n = "id" }
decode = { json = "id int, name string" }
select = { other = "name" }
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('table  = "t/zones"', 'table  = "t/zones"\ntopic = "zones"', "line 6: a lookup names 2 places"),
        ('table  = "t/zones"\n', "", "line 6: a lookup names no places"),
        ('table  = "t/zones"', "table  = 5", "line 7: table is 5"),
        ('table  = "t/zones"', 'table  = "t/../t/rows"', "line 7: the pipeline looks up t/../t/rows, which it writes"),
        ('topic  = "names"', 'topic  = "names"\nschema = "id int"', "line 12: schema does not belong to a topic"),
        ('table  = "t/zones"', 'table  = "t/zones"\ndecode = "text"', "line 8: decode does not belong to a table"),
        ('on     = ["n"]\n', "", "line 6: the lookup has no key"),
        ('on     = ["n"]', "on     = []", "line 6: the lookup has no key"),
        ('on     = ["n"]', 'on     = { n = 5 }', "line 8: on is {'n': 5}"),
        ('on     = ["n"]', 'on     = 5', "line 8: lookup.on is 5"),
        ('{ name = "name" }', "{}", "line 6: the lookup selects nothing"),
        ('{ name = "name" }', '{ _name = "name" }', "line 9: lookup.select._name begins with an underscore"),
        ('on     = ["n"]', 'on     = ["n"]\nunmatched = "drop"', "line 9: unknown unmatched 'drop'"),
        ('on     = ["n"]', 'on     = ["n"]\nmatched = "one"', "line 9: "),
        ('json = "id int, name string"', "json = 5", "line 13: json needs to know the fields"),
        ('{ json = "id int, name string" }', '"debezium"', "line 13: a lookup does not read events of Debezium"),
        ('from   = "a"', 'from   = "a"\ntrigger = "realtime"\ndead_letters = "d"',
         "a lookup does not go together with realtime"),
        ('{ delta = "t/rows" }', '{ delta = "t/rows", aggregate = { values = { n = "count(*)" }, mode = "watermark" } }'
         '\nevent_time = "n"\nwatermark = "1 hour"', "does not go together with an aggregate of mode watermark"),
    ],
)  # fmt: skip
def test_what_a_lookup_cannot_mean_is_refused_with_its_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(_LOOKUPS, encoding="utf-8")
    zones, names = Pipeline.from_file(file, "p").declaration.lookups
    assert (zones.on, names.on, names.rule) == ({"n": "`n`"}, {"n": "id"}, "lookup names")
    assert old in _LOOKUPS
    file.write_text(_LOOKUPS.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        Pipeline.from_file(file, "p")
    assert words in told.value.problem


def test_what_python_says_is_checked_too(tmp_path: Path) -> None:
    said = Declaration("p", ("a",), (Sink("console", "console"),), deduplicate=Deduplicate(()))
    with pytest.raises(ConfigError, match="pipeline p, deduplicate: deduplicate names no column"):
        Pipeline(said, tmp_path)


def test_a_sink_that_is_computed_from_another_stands_below_it(tmp_path: Path) -> None:
    head, rows, sums, out = _TABLES.split("[[pipelines.p.into]]")
    file = tmp_path / "headrace.toml"
    file.write_text("[[pipelines.p.into]]".join((head, sums, rows, out)), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"line 7: t/sums is computed from the rows in t/rows, which is declared below"
    ):
        Pipeline.from_file(file, "p")


_ALL: dict[str, Any] = {
    "cluster": {"brokers": 1, "racks": ["a"], "node_ids": [1], "base_port": 9000, "services": ["console"],
                "console_read_only": True, "plugins": "x", "kafka": {"a.b": "c"}},
    "runtime": {"cache": "x", "min_free_disk": "1GB"},
    "topics": {"a": {"partitions": 1, "replication": 1, "kafka": {"a": "b"}}},
    "pipelines": {"p": {
        "from": ["a"], "start": "end", "decode": {"json": "n int, at timestamp", "options": {"mode": "x"}},
        "select": {"n": "n", "at": "at"}, "where": "n > 0", "expect": {"r": {"rule": "n > 1", "action": "warn"}},
        "event_time": "at", "watermark": "1 day", "deduplicate": {"by": ["n"], "within": "1 day"},
        "into": [
            {"delta": "rows", "select": {"n": "n"}, "where": "n > 1", "partition_by": ["n"]},
            {"delta": "sums", "aggregate": {
                "by": ["n"], "values": {"c": "count(*)"}, "window": "1 day", "slide": "1 hour", "mode": "merge"}},
            {"delta": "latest", "changes": {
                "key": ["n"], "sequence": ["at", "n"], "delete_when": "n = 0", "history": True}},
            {"delta": "upserted", "upsert": {"key": ["n"], "sequence": "at"}},
            {"topic": "out", "key": "n", "format": "json"}],
        "dead_letters": {"table": "dead"}, "trigger": "1 second", "max_records_per_batch": 5,
        "spark": {"a": "b"}, "kafka": {"c": "d"}, "checkpoint": "c",
    }},
}  # fmt: skip
_STRANGE: tuple[Any, ...] = (
    5,
    -1,
    1.5,
    True,
    "",
    "x",
    [],
    [5],
    [[]],
    ["a", ["b"]],
    {},
    {"x": 5},
    {"python": 5},
    [{}],
    {"by": 5},
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value stands, anywhere inside."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    inner = _with(value[path[0]], path[1:], new)
    if isinstance(value, dict):
        return {**value, path[0]: inner}
    return [inner if at == path[0] else old for at, old in enumerate(value)]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def test_whatever_stands_where_something_else_belongs_is_an_error_in_words(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"

    def look(document: dict[str, Any], changed: str) -> None:
        file.write_text(f"{changed} = {_toml(document[changed])}\n", encoding="utf-8")
        if changed != "pipelines":
            load(file)
            return
        for name in declared(file):
            read(file, name)

    for room in _ALL:
        look(_ALL, room)
    refused = 0
    for path in _places(_ALL):
        for strange in _STRANGE:
            try:
                look(_with(_ALL, path, strange), path[0])
            except HeadraceError as error:
                assert "headrace.toml" in error.problem, (path, strange)  # noqa: PT017 - the others are right as they are
                refused += 1
            except Exception as error:
                raise AssertionError(f"{path} = {strange!r}: {error!r}") from error
    assert refused > 500
