"""A file as a graph, without Spark: what depends on what, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError, NotFound, UsageError
from headrace.home import Home
from headrace.pipeline.books.known_tables import find_table, known_tables
from headrace.pipeline.books.view_updates import SourceVersion, ViewUpdate
from headrace.pipeline.declare.graph import read_graph, table_names
from headrace.pipeline.graph import Graph
from headrace.pipeline.pipeline import Pipeline
from tests.unit.test_checkpoint import write_checkpoint

PIPELINES = """
[pipelines.speeds]
from = "crumbs"
into = { delta = "tables/speeds" }
[pipelines.stops]
from = "stops"
into = [{ delta = "tables/stops" }, { parquet = "tables/files" }]
"""


def declared(folder: Path, views: str) -> Path:
    file = folder / "headrace.toml"
    file.write_text(PIPELINES + views, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select * from speeds s join `stops` using (trip) where a is distinct from b", ["speeds", "stops"]),
        ("select extract(year from at), trim(both ' ' from name) from speeds", ["speeds"]),
        ("with x as (select * from speeds), y as (select 1) select * from x, y, z join (select * from d) on true",
         ["speeds", "z", "d"]),
        ("select 'from a', \"from b\" from c -- from d\n /* from e */", ["c"]),
        ("select * from range(3), values (1), (2) join a lateral view explode(m) t as k, v", ["a"]),
        ("select a, b from x union all select b, c from y order by c, d", ["x", "y"]),
        ("with speeds as (select * from speeds) select * from speeds", ["speeds"]),
        ("from speeds select a, b", ["speeds"]),
        ("select * from delta.`/some/where`", ["delta./some/where"]),
        ("select * from x cluster by a, b", ["x"]),
        ("select * from x join y using (a) distribute by a, b sort by b, c", ["x", "y"]),
        ("select a, sum(b) over (partition by a, b order by b, c) from x group by a, b", ["x"]),
        # The name of a query is one behind its end, and only there.
        ("with a as (select * from x), b (n, m) as (select * from a) select * from a, b", ["x"]),
        ("with a as (select * from a join b on true), b as (select 1) select * from a, b", ["a", "b"]),
        ("with recursive a as (select 1 union all select n from a join x) select * from a", ["x"]),
        ("select * from (with a as (select * from x) select * from a) join a on true", ["x", "a"]),
    ],
)  # fmt: skip
def test_the_tables_of_a_query_are_found(sql: str, tables: list[str]) -> None:
    assert table_names(sql) == tables


def test_a_graph_knows_what_hangs_on_what(tmp_path: Path) -> None:
    file = declared(
        tmp_path,
        """
[views.top]
sql = "select route, total from per_route where total > 10"
key = "route"
[views.per_route]
sql = "select route, sum(speed) as total from speeds join stops using (trip) group by route"
key = ["route"]
into = "elsewhere/per_route"
[views.trips]
sql = "select distinct trip from stops"
key = "trip"
""",
    )
    text = file.read_text(encoding="utf-8")
    same = 'sql = "with trips as (select * from stops) select distinct trip from trips"'
    file.write_text(text.replace('sql = "select distinct trip from stops"', same), encoding="utf-8")
    assert read_graph(file).needs("trips") == {"stops"}  # not itself
    graph = read_graph(file)
    assert graph.order.index("per_route") < graph.order.index("top")
    assert set(graph.order) == {"speeds", "stops", "per_route", "top", "trips"}
    assert graph.downstream("speeds") == ["per_route", "top"]
    assert set(graph.downstream("stops")) == {"per_route", "top", "trips"}
    assert Pipeline.from_file(file, "speeds").downstream == ["per_route", "top"]
    assert graph.views["top"].path == str(tmp_path / "tables" / "top")
    home = Home(tmp_path / ".headrace")
    whole = Graph.from_file(file, home)
    assert [node.reads for node in whole.nodes if node.name == "per_route"] == [("speeds", "stops")]
    assert (whole.status("top").state, whole.status("top").last) == ("never run", None)
    tables, wrong = known_tables(home)
    assert not wrong
    assert {table.name: table.role for table in tables}["per_route"] == "view"
    assert find_table(home, "per_route").path == str(tmp_path / "elsewhere" / "per_route")
    with pytest.raises(UsageError, match="speeds is a pipeline: a refresh needs Kafka"):
        whole.refresh("speeds", full=True)
    assert whole.plan_refresh("per_route", full=True).nodes == ("per_route", "top")


def test_pipelines_are_ordered_by_their_topics(tmp_path: Path) -> None:
    """The last of them reads what the one before it sends; two that send to each other are in no order."""
    file = declared(
        tmp_path,
        """
[pipelines.last]
from = "sent"
into = [{ delta = "tables/last" }, { topic = "crumbs" }]
[pipelines.first]
from = "raw"
into = { topic = "sent" }
[views.v]
sql = "select value from last"
key = "value"
""",
    )
    graph = read_graph(file)
    assert graph.order.index("first") < graph.order.index("last") < graph.order.index("speeds")
    assert graph.downstream("first") == ["last", "speeds", "v"]
    first = Pipeline.from_file(file, "first", tmp_path / ".headrace")
    assert first.downstream == ["last", "speeds", "v"]
    write_checkpoint(first.folder.root / "checkpoint", {"raw": {"0": 9}}, committed=1)
    assert first.plan_rewind("raw:0=7").consequences[-2:] == (
        "pipelines that read what it writes are not rewound, and meet its rows again: last, speeds",
        "views made from its tables follow at their next update: v",
    )
    file.write_text(file.read_text(encoding="utf-8").replace('"raw"', '"crumbs"'), encoding="utf-8")
    assert set(read_graph(file).order) == {"speeds", "stops", "last", "first", "v"}
    assert set(Pipeline.from_file(file, "first").downstream) == {"last", "speeds", "v"}
    assert set(Pipeline.from_file(file, "last").downstream) == {"first", "speeds", "v"}


def test_a_pipeline_is_behind_what_it_looks_up_and_joins(tmp_path: Path) -> None:
    file = declared(
        tmp_path,
        """
[pipelines.a]
from = "raw"
decode = { json = "zone int" }
lookup = [
  { table = "tables/zones", on = ["zone"], select = { borough = "borough" } },
  { table = "other.csv", on = ["zone"], select = { name = "name" } },
  { topic = "names", on = ["zone"], select = { said = "value" } },
]
into = [{ delta = "tables/trips" }, { postgres = "postgresql://localhost/db", table = "trips" }]
[pipelines.b]
from = "raw"
event_time = "at"
watermark = "1 minute"
decode = { json = "zone int, at timestamp" }
into = { delta = "tables/both" }
[pipelines.b.join]
topic = "sent"
on = ["zone"]
within = "5 minutes"
decode = { json = "zone int, at timestamp" }
event_time = "at"
[pipelines.names]
from = "raw"
into = { topic = "names" }
[pipelines.sends]
from = "raw"
into = { topic = "sent" }
[views.zones]
sql = "select * from stops"
key = "zone"
""",
    )
    graph = read_graph(file)
    assert (graph.needs("a"), graph.needs("b")) == ({"names", "zones"}, {"sends"})
    assert graph.order.index("a") > max(graph.order.index(each) for each in ("names", "zones", "stops"))
    assert graph.order.index("b") > graph.order.index("sends")
    assert graph.made_from("stops") == ["zones", "a"]
    (node,) = (node for node in Graph.from_file(file, tmp_path).nodes if node.name == "a")
    assert (node.reads, node.looks_up) == (("raw", "names"), ("zones", "other"))
    assert (node.writes, node.elsewhere) == (("trips",), ("postgres trips",))


@pytest.mark.parametrize(
    ("views", "line", "words"),
    [
        ('[views.a]\nsql = "select * from b"\nkey = "x"\n[views.b]\nsql = "select * from a"\nkey = "x"', 9,
         "the view a is made from itself\n  why: a ← b ← a"),
        ('[views.a]\nsql = "select * from a"\nkey = "x"', 9, "the view a is made from itself"),
        ('[pipelines.p]\nfrom = "t"\nlookup = { table = "tables/v", on = ["x"], select = { y = "y" } }\n'
         'into = { delta = "tables/p" }\n[views.v]\nsql = "select * from p"\nkey = "x"', 13,
         "the view v is made from itself\n  why: v ← p ← v"),
        ('[pipelines.p]\nfrom = "t"\nlookup = { table = "tables/q", on = ["x"], select = { y = "y" } }\n'
         'into = { delta = "tables/p" }\n[pipelines.q]\nfrom = "t"\n'
         'lookup = { table = "tables/p", on = ["x"], select = { y = "y" } }\ninto = { delta = "tables/q" }', 10,
         "the pipeline p looks up what is made from its own tables\n  why: p ← q ← p"),
        ('[views.a]\nsql = "select * from speds"\nkey = "x"', 9,
         "there is no table 'speds'\n  why: pipelines and views of this file write speeds, stops, files, a\n"
         "  try: did you mean speeds?"),
        ('[views.a]\nsql = "select * from files"\nkey = "x"', 9, "a view cannot read 'files', a parquet table"),
        ('[views.a]\nsql = "select * from stops"\nkey = "x"\ninto = "tables/speeds"', 11,
         "tables/speeds is written twice"),
        ('[views.a]\nsql = "select * from stops"\nkey = "x"\ninto = "more/speeds"\n[views.b]\n'
         'sql = "select * from speeds"\nkey = "x"', 13, "'speeds' is the name of 2 tables"),
        ('[views.speeds]\nsql = "select * from stops"\nkey = "x"\ninto = "tables/x"', 8, "speeds is a pipeline, too"),
        ('[views.a]\nsql = "select * from stops"', 8, "key is missing"),
        ('[views.a]\nkey = "x"', 8, "sql is missing"),
        ('[views.a]\nsql = "select * from stops"\nkeys = "x"', 10, "unknown setting views.a.keys"),
        ('[views.a]\nsql = 3\nkey = "x"', 9, "sql is 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_graph_names_its_line(tmp_path: Path, views: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_graph(declared(tmp_path, views))
    assert str(caught.value).startswith(f"headrace.toml, line {line}: ")
    assert words in str(caught.value)


def test_pipelines_read_topics_and_views_read_tables(tmp_path: Path) -> None:
    file = declared(
        tmp_path,
        '[pipelines.p]\nfrom = { table = "tables/stops" }\ninto = { delta = "p" }\n'
        '[views.v]\nsql = "select * from stops"\nkey = "trip"\n',
    )
    with pytest.raises(ConfigError, match=r"line 9: a pipeline reads topics\n.*\n  try: \[views\.NAME\]"):
        Pipeline.from_file(file, "p")
    with pytest.raises(NotFound, match="v is a view, not a pipeline"):
        Pipeline.from_file(file, "v")


def test_an_update_is_read_back_from_its_commit() -> None:
    made = ViewUpdate("v", "incremental", "", {"t": SourceVersion("id", 7, 5)}, 3, fingerprint="abc", seconds=1.5)
    assert ViewUpdate.from_note(made.note) == made
    for text in (None, "", "p batch 3", "{}", "[]", '{"view": "v", "sources": {}, "strange": 1}'):
        assert ViewUpdate.from_note(text) is None
