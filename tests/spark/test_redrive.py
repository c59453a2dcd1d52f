"""Dead letters of a pipeline tried against today's rules, mended and sent again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.pipeline.books.dead_letters import Letter, Wanted, letters
from headrace.pipeline.books.redrive import RedrivePlan, RedriveReport, redrive
from headrace.pipeline.spark.dry_run import DryRun
from headrace.pipeline.spark.run import Run
from tests.spark.pipelines import Workshop, send, totals

if TYPE_CHECKING:
    from headrace.pipeline.spark.classify import Classifier

Topic = Callable[..., str]

_SALES = """
[pipelines.p]
from   = "<topic>"
decode = { json = "shop string, amount int" }
into   = { delta = "tables/sales" }
[pipelines.p.expect]
"is positive" = "amount > 0"
"is small"    = "amount < LIMIT"
"""


def tried(shop: Workshop, plan: RedrivePlan) -> tuple[RedriveReport, dict[tuple[str, str], int]]:
    """What would be sent by the plan, and what today's rules say of it."""

    def prepare() -> Classifier:
        pipeline = shop.pipeline()
        return Run(shop.spark, pipeline.declaration, pipeline.folder, shop.connection).prepare()

    trial = DryRun(prepare)
    report = redrive(shop.connection, found(shop), replace(plan, dry=True), trial)
    return report, dict(trial.outcomes)


def found(shop: Workshop, wanted: Wanted | None = None) -> list[Letter]:
    pipeline = shop.pipeline()
    return list(letters(shop.connection, pipeline.folder.dead_letters(pipeline.declaration), wanted))


def positive(letter: Letter) -> Letter | None:
    """The amount without its sign; what is no JSON stays where it is."""
    try:
        row = json.loads(letter.value or b"")
    except ValueError:
        return None
    return replace(letter, value=json.dumps({**row, "amount": abs(row["amount"])}).encode())


def test_letters_are_tried_as_they_would_be_sent(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(_SALES.replace("LIMIT", "1000"), topic=topic)
    amounts = [1, 2, -3, -4, 5000, -6000]
    send(shop.cluster, topic, [{"shop": "a", "amount": amount} for amount in amounts] + [b"{"])
    assert totals(shop.run()) == {"written": 2, "dead": 5}

    assert tried(shop, RedrivePlan())[1] == {("dead", "decode"): 1, ("dead", "is positive"): 3, ("dead", "is small"): 1}
    report, outcomes = tried(shop, RedrivePlan(edit=positive))
    assert (report.sent, report.edited, report.left_out) == (4, 3, 1)
    assert outcomes == {("written", ""): 2, ("dead", "is small"): 2}
    shop.declare(_SALES.replace("LIMIT", "10000"), topic=topic)
    assert tried(shop, RedrivePlan(edit=positive))[1] == {("written", ""): 4}

    only = found(shop, Wanted(rules=("is small",)))
    assert redrive(shop.connection, only).sent == 1
    report, outcomes = tried(shop, RedrivePlan())
    assert (report.sent, report.marked) == (4, 1)
    assert outcomes == {("dead", "decode"): 1, ("dead", "is positive"): 3}
    assert totals(shop.run()) == {"written": 1}
    assert sorted(row["amount"] for row in shop.rows("tables/sales")) == [1, 2, 5000]
