"""SQL over topics and tables, as a person types it and from Python; compared with what was written."""

from __future__ import annotations

import csv
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import NotAllowed, NotFound
from headrace.kafka.client import HasBootstrap
from headrace.kafka.write.producer import produce
from tests.conftest import Headrace

_ROWS = 2500
_BAD = [b"{torn", b'{"vehicle": "x"}', b'{"vehicle": 1} {"vehicle": 2}', b"[1]", b"\xff"]


def crumb(n: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(1_600_000_000 + n, UTC)
    return {
        "vehicle": n % 7,
        "speed": n / 4,
        "at": at.isoformat(),
        "offset": n,
        "tags": [f"t{n % 3}"],
        "more": {"n": n},
    }


@pytest.fixture
def crumbs(headrace_cluster: HasBootstrap, headrace_topic: Callable[..., str], tmp_path: Path) -> str:
    """A topic whose records a pipeline decodes, with some that it cannot, and a Parquet table beside it."""
    topic = headrace_topic(partitions=3)
    produce(headrace_cluster.bootstrap, topic, [crumb(n) for n in range(_ROWS)])
    produce(headrace_cluster.bootstrap, topic, [*_BAD, None])
    (tmp_path / "headrace.toml").write_text(
        f"""
[pipelines.crumbs]
from = "{topic}"
into = {{ parquet = "tables/vehicles" }}
[pipelines.crumbs.decode]
json = "vehicle int, speed double, at timestamp, offset bigint, tags array<string>, more struct<n: bigint>"
"""
    )
    folder = tmp_path / "tables" / "vehicles"
    folder.mkdir(parents=True)
    names = pa.table({"vehicle": list(range(6)), "label": [f"bus {n}" for n in range(6)]})
    pq.write_table(names, folder / "part-0.parquet")
    return topic


def test_a_topic_row_by_row(headrace_cluster: HasBootstrap, crumbs: str, tmp_path: Path) -> None:
    def ask(query: str) -> headrace.Result:
        return headrace.sql(query.replace("CRUMBS", f'topic."{crumbs}"'), headrace_cluster.bootstrap, home=tmp_path)

    result = ask("select * from CRUMBS order by offset")
    rows = result.rows()
    assert result.notes == (f"{len(_BAD)} records of topic {crumbs} could not be decoded: their fields are null",)
    decoded = [row for row in rows if row["vehicle"] is not None]
    expected = [{**crumb(n), "at": datetime.fromtimestamp(1_600_000_000 + n, UTC)} for n in range(_ROWS)]
    assert [{name: row[name] for name in expected[0]} for row in decoded] == expected
    assert [json.loads(row["value"]) for row in decoded] == [crumb(n) for n in range(_ROWS)]
    # The record's own offset gives way to the field of that name.
    places = {(row["topic"], row["partition"], row["_offset"]) for row in rows}
    assert len(places) == len(rows) == _ROWS + len(_BAD) + 1
    assert Counter(row["value"] for row in rows if row["vehicle"] is None) == Counter([*_BAD, None])
    assert all(abs(row["timestamp"].timestamp() - time.time()) < 600 for row in rows)

    # Nothing is decoded, and so nothing fails, if no field is meant.
    counted = ask("select partition, count(*) as n, min(_offset) from (select *, 1 as _offset from CRUMBS) group by 1")
    assert sum(row["n"] for row in counted.rows()) == len(rows)
    plain = ask("select count(*) as n from CRUMBS where topic is not null")
    assert (plain.rows(), plain.notes) == ([{"n": len(rows)}], ())
    # A whole row is meant by the name of the table.
    whole = ask("select t from CRUMBS t where t.vehicle = 3 limit 1").rows()[0]["t"]
    assert whole["vehicle"] == 3
    # A topic may be read twice, and joined with a table.
    joined = ask("select label, count(*) as n from CRUMBS a join CRUMBS b using (partition, _offset) "
                 "join vehicles v on v.vehicle = a.vehicle group by all order by 1")  # fmt: skip
    vehicles = Counter(crumb(n)["vehicle"] for n in range(_ROWS))
    assert joined.rows() == [{"label": f"bus {n}", "n": vehicles[n]} for n in range(6)]
    taken = ask("select vehicle from CRUMBS where vehicle is not null limit 10").arrow()
    assert (taken.num_rows, taken.schema.field("vehicle").type) == (10, pa.int32())

    for query, kind in (
        ("from topic.nothing", NotFound),
        ("from nothing", NotFound),
        ("drop table vehicles", NotAllowed),
    ):
        with pytest.raises(kind):
            ask(query)


def test_the_command(headrace_cluster: HasBootstrap, crumbs: str, run: Headrace, tmp_path: Path) -> None:
    def ask(*words: str, **more: Any) -> Any:
        return run("sql", "--bootstrap", headrace_cluster.bootstrap, *words, **more)

    topic = f'topic."{crumbs}"'
    by_vehicle = f"select vehicle, count(*) as n, max(at) as at from {topic} group by 1 order by 1 nulls last"
    last = {n % 7: crumb(n) for n in range(_ROWS)}
    expected = [
        {"vehicle": v, "n": len(range(v, _ROWS, 7)), "at": last[v]["at"].replace("+00:00", "Z")} for v in range(7)
    ]
    expected.append({"vehicle": None, "n": len(_BAD) + 1, "at": None})
    done = ask("--json", by_vehicle)
    assert [json.loads(line) for line in done.out.splitlines()] == expected
    assert "5 records" in done.err
    (tmp_path / "query.sql").write_text(by_vehicle)
    assert ask("--file", "query.sql", "--json").out == ask("-", "--json", stdin=by_vehicle).out == done.out
    shown = ask(f"{by_vehicle} limit 2").out.splitlines()
    assert shown == [
        "VEHICLE    N  AT",
        f"      0  {expected[0]['n']}  {expected[0]['at']}",
        f"      1  {expected[1]['n']}  {expected[1]['at']}",
    ]
    table = list(csv.DictReader(ask("--csv", by_vehicle).out.splitlines()))
    assert table == [{k: "" if v is None else str(v) for k, v in row.items()} for row in expected]

    assert ask(f"select vehicle, tags, at from {topic}", "-o", "out.parquet").code == 0
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.num_rows == _ROWS + len(_BAD) + 1
    assert written.schema.field("at").type == pa.timestamp("us", "UTC")
    assert f"{written.num_rows:,} rows to out.ndjson" in ask(f"from {topic}", "-o", "out.ndjson").err
    assert len((tmp_path / "out.ndjson").read_text().splitlines()) == written.num_rows
    assert not list(tmp_path.glob("*.part"))

    assert "vehicles" in ask("show tables").out
    assert "TIMESTAMP WITH TIME ZONE" in ask(f"describe {topic}").out
    assert "LIMIT" in ask(f"explain select vehicle from {topic} limit 3").out.upper()
    many = ask("select * from range(3000)")
    assert len(many.out.splitlines()) == 1001
    assert "first 1,000 rows" in many.err

    wrong = {
        "select * from vehicle": "did you mean vehicles?",
        f"select vehicl from {topic}": "vehicle",
        "select * from 'x.csv'": "files cannot be read",
        "from read_csv('/etc/passwd')": "file system operations are disabled",
        "select 1; select 2": "2 queries were given",
        "select * frm vehicles": "^^^",
        "delete from vehicles": "delete is not allowed",
        "from topic.nothing": "nothing",
    }
    for query, said in wrong.items():
        done = ask(query)
        assert (done.code, done.out) == (2, ""), query
        assert said in done.err, query
    done = ask("--timeout", "soon", "select 1")
    assert (done.code, done.out) == (2, "")
    assert "'soon' is not a length of time" in done.err
    assert "took longer" in ask("--timeout", "0.3s", "select count(*) from range(1000000000000)").err
    assert "unknown kind of file" in ask("select 1", "-o", "x.xlsx").err


def test_topics_that_are_joined_looked_up_or_debeziums(
    headrace_cluster: HasBootstrap, headrace_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Each has the columns that a pipeline sees; of a delete, those of the row before it."""
    names = ("left", "right", "zones", "changes")
    topics = {name: headrace_topic() for name in names}
    text = """
[pipelines.p]
from = "<left>"
decode = { json = "id int, at timestamp" }
event_time = "at"
watermark = "1 hour"
into = { delta = "t" }
join = { topic = "<right>", on = "id", within = "1 hour", decode = { json = "id int, stop string" } }
[pipelines.q]
from = "<changes>"
decode = { debezium = "id int, op string, city string" }
lookup = { topic = "<zones>", on = "id", select = { zone = "zone" }, decode = { json = "id int, zone string" } }
into = { delta = "u" }
"""
    for name, topic in topics.items():
        text = text.replace(f"<{name}>", topic)
    (tmp_path / "headrace.toml").write_text(text)
    made = {"op": "c", "after": {"id": 1, "op": "x", "city": "Oslo"}, "ts_ms": 5, "source": {"lsn": 7}}
    gone = {"op": "d", "before": {"id": 1}, "after": None, "ts_ms": 6, "source": {"lsn": 8}}
    sent: dict[str, list[Any]] = {
        "right": [{"id": 1, "stop": "a"}], "zones": [{"id": 1, "zone": "b"}],
        "changes": [made, {"schema": {"type": "struct"}, "payload": gone}, None, {"op": "t"}, {"id": 3}],
    }  # fmt: skip
    for name, records in sent.items():
        produce(headrace_cluster.bootstrap, topics[name], records)

    def ask(columns: str, name: str) -> headrace.Result:
        query = f'select {columns} from topic."{topics[name]}" order by "offset"'
        return headrace.sql(query, headrace_cluster.bootstrap, home=tmp_path)

    assert ask("id, stop", "right").rows() == sent["right"]
    assert ask("id, zone", "zones").rows() == sent["zones"]
    found = ask("id, op, city, debezium_op, ts_ms, lsn, file, pos", "changes")
    rows = [list(row.values()) for row in found.rows()]
    assert rows[:2] == [[1, "x", "Oslo", "c", 5, 7, None, None], [1, None, None, "d", 6, 8, None, None]]
    assert rows[2:] == [[None] * 8] * 3
    assert found.notes == (f"2 records of topic {topics['changes']} could not be decoded: their fields are null",)


def test_ctrl_c_ends_it_at_once(run: Headrace) -> None:
    with run.start("sql", "select count(*) from range(1000000000000)") as process:
        threading.Timer(2, lambda: process.send_signal(signal.SIGINT)).start()
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "interrupted")
    assert time.monotonic() - began < 10
