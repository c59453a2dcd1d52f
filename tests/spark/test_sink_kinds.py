"""Sinks that headrace does not have: registered by a program, or by a package that is installed."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace import ConfigError, Failed, SinkWriter, UsageError, register_sink
from headrace.pipeline.declare import sink_kinds
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

_SALES = """
[pipelines.p]
from = "<topic>"
decode = { json = "shop string, amount int" }
[[pipelines.p.into]]
lines = "out"
where = "amount > 1"
select = { shop = "upper(shop)", amount = "amount" }
[[pipelines.p.into]]
delta = "tables/sales"
"""


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten."""
    monkeypatch.setattr(sink_kinds, "_known", dict(sink_kinds._known))
    yield
    sys.modules.pop("lines_sink", None)


def _example() -> str:
    """The code of docs/pipelines.md."""
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import json\n\nfrom headrace import SinkWriter.*?)```", page, re.DOTALL)
    return str(code)


def _load(folder: Path) -> ModuleType:
    """The module that the code makes: it registers the sink `lines`."""
    (folder / "lines_sink.py").write_text(_example())
    spec = importlib.util.spec_from_file_location("lines_sink", folder / "lines_sink.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lines(shop: Workshop, number: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (shop.folder / "out" / f"{number}.json").read_text().splitlines()]


def test_the_documented_sink_takes_rows_and_is_accounted_for(shop: Workshop, headrace_topic: Topic) -> None:
    _load(shop.folder)
    topic = headrace_topic()
    shop.declare(_SALES, topic=topic)
    send(shop.cluster, topic, [{"shop": "a", "amount": n} for n in range(5)] + [b"{"])
    report = shop.run()
    assert totals(report) == {"written": 5, "dead": 1}
    assert {(line.sink, line.taken, line.skipped) for line in report.sinks if line.sink != "dead letters"} == {
        ("out", 3, 2), ("tables/sales", 5, 0),
    }  # fmt: skip
    assert sorted(_lines(shop, 0), key=lambda row: row["amount"]) == [{"shop": "A", "amount": n} for n in (2, 3, 4)]


def test_a_sink_that_fails_gets_the_batch_again(shop: Workshop, headrace_topic: Topic) -> None:
    documented: Any = _load(shop.folder).Lines
    seen: list[tuple[int, bool]] = []

    class Failing(SinkWriter):
        def write(self, sink: Any, rows: Any, batch: Any) -> int | None:
            seen.append((batch.number, batch.replaying))
            if len(seen) == 1:
                raise OSError("the disk is gone")
            made: int | None = documented().write(sink, rows, batch)
            return made

    register_sink("lines", Failing)
    topic = headrace_topic()
    shop.declare(_SALES, topic=topic)
    send(shop.cluster, topic, [{"shop": "a", "amount": 7}])
    with pytest.raises(Failed, match="failed") as caught:
        shop.run()
    assert "the disk is gone" in str(caught.value)
    assert totals(shop.run()) == {"written": 1}
    assert seen == [(0, False), (0, True)]
    assert (_lines(shop, 0), len(shop.rows("tables/sales"))) == ([{"shop": "A", "amount": 7}], 1)


def test_an_installed_package_brings_a_sink(
    shop: Workshop, headrace_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "lines-1.dist-info").mkdir(parents=True)
    (site / "lines-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1\n")
    (site / "lines-1.dist-info" / "entry_points.txt").write_text("[headrace.sinks]\nlines = lines_sink:Lines\n")
    (site / "lines_sink.py").write_text(_example().replace("register_sink(", "print("))
    topic = headrace_topic()
    shop.declare(_SALES, topic=topic)
    with pytest.raises(ConfigError, match="lines"):
        shop.pipeline()
    monkeypatch.syspath_prepend(str(site))
    send(shop.cluster, topic, [{"shop": "a", "amount": 7}])
    assert totals(shop.run()) == {"written": 1}
    assert _lines(shop, 0) == [{"shop": "A", "amount": 7}]


def test_the_names_of_headraces_own_sinks_are_taken() -> None:
    with pytest.raises(UsageError, match="cannot register a sink 'delta'"):
        register_sink("delta", object)
