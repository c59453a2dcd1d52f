"""Real-time mode on real Kafka and real Spark: record by record, each with an outcome and the place it came from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest

from headrace.kafka.read.consumer import consume
from headrace.pipeline.pipeline import RunObserver
from headrace.pipeline.spark.run import Run
from headrace.pipeline.spark.strategies import realtime
from headrace.pipeline.spark.strategies.realtime import SOURCE_HEADER
from headrace.runtime.waiting import eventually
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

_COPY = """
[pipelines.p]
from         = "<source>"
decode       = { json = "id long, amount int" }
where        = "amount != 0"
trigger      = "realtime"
dead_letters = { topic = "<dead>" }
into         = { topic = "<target>", key = "id" }
[pipelines.p.expect]
"is positive" = "amount > 0"
"""


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends with its stretch: half a minute of waiting otherwise."""
    monkeypatch.setattr(realtime, "_CHECKPOINT_EVERY", "5 seconds")


def _had_nothing_to_do(run: Run) -> bool:
    """A stretch has ended in which nothing came."""
    ended = run.query.lastProgress if run.query else None
    return ended is not None and ended["numInputRows"] == 0


class _Copying:
    """The pipeline at work, and what has come out of it so far."""

    def __init__(self, shop: Workshop, topics: tuple[str, str, str]) -> None:
        self.shop = shop
        self.source, self.target, self.dead = topics
        self.said: list[str] = []

    def start(self) -> Run:
        return self.shop.pipeline().begin(self.shop.spark, self.shop.cluster, observer=RunObserver(self.said.append))

    def arrived(self) -> Counter[tuple[int, str]]:
        """Which rows came, by the place that each says it was made of, and how often."""
        return Counter(
            (json.loads(record.value or b"")["id"], (dict(record.headers)[SOURCE_HEADER] or b"").decode())
            for record in consume(self.shop.connection, self.target)
        )

    def ids(self) -> set[int]:
        return {row for row, _ in self.arrived()}


def test_records_pass_one_by_one_and_are_accounted_for(shop: Workshop, headrace_topic: Topic) -> None:
    copying = _Copying(shop, (headrace_topic(), headrace_topic(), headrace_topic()))
    shop.declare(_COPY, source=copying.source, target=copying.target, dead=copying.dead)
    send(shop.cluster, copying.source, [{"id": n, "amount": n} for n in range(-1, 50)] + [b"{"])
    run = copying.start()
    try:
        eventually(lambda: copying.ids() == set(range(1, 50)), 120, every_s=0.5)
        send(shop.cluster, copying.source, [{"id": n, "amount": n} for n in range(50, 100)])
        eventually(lambda: copying.ids() == set(range(1, 100)), 30, every_s=0.5)
    finally:
        run.stop()
    run.wait()
    # Places differ by one where the offset does: a row of -1, one of 0 and the torn one lie between.
    assert all(place == f"{copying.source}/0/{row + 1 + (row >= 50)}" for row, place in copying.arrived())
    assert set(copying.arrived().values()) == {1}
    letters = list(consume(shop.connection, copying.dead))
    assert {(letter.value, dict(letter.headers)["headrace.rule"]) for letter in letters} == {
        (b'{"id": -1, "amount": -1}', b"is positive"),
        (b"{", b"decode"),
    }
    assert totals(shop.pipeline().report(run.name)) == {"written": 99, "dead": 2, "filtered": 1}
    assert any("at least once" in line for line in copying.said)


def test_a_pipeline_that_has_nothing_to_do_can_be_stopped(shop: Workshop, headrace_topic: Topic) -> None:
    """It ends with the stretch, also when nothing came in it, and goes on from there the next time."""
    copying = _Copying(shop, (headrace_topic(), headrace_topic(), headrace_topic()))
    shop.declare(_COPY, source=copying.source, target=copying.target, dead=copying.dead)
    send(shop.cluster, copying.source, [{"id": 1, "amount": 1}])
    for amount in (1, 2):
        run = copying.start()
        eventually(lambda amount=amount: copying.ids() == set(range(1, amount + 1)), 120, every_s=0.5)  # type: ignore[misc]
        eventually(lambda run=run: _had_nothing_to_do(run), 60, every_s=0.5)  # type: ignore[misc]
        run.stop()
        run.wait()
        send(shop.cluster, copying.source, [{"id": amount + 1, "amount": amount + 1}])
    assert set(copying.arrived().values()) == {1}
