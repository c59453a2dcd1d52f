"""What the console does with pipelines: start, stop, look at dead letters, redrive them. None of it needs a JVM here.

Dead letters are read where they lie, at most so many; a redrive of more is the command line's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from headrace.console.backend import Desk
from headrace.errors import Failed, NotFound
from headrace.pipeline.dead_letters import Group, Letter, Wanted, letters, summary
from headrace.pipeline.diagnosis import diagnose
from headrace.pipeline.driver import Driver
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.redrive import RedrivePlan, RedriveReport, redrive
from headrace.transport.render import Look, Shown

_MOST_LETTERS = 100_000
_SAMPLES = 3


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter to look at: where its original was, and what is wrong with it."""

    origin: str
    timestamp_ms: int
    size_bytes: int
    key: Shown
    value: Shown
    words: str


class DeadLettersView(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that died of the same."""

    outcome: str
    rule: str
    reason: str
    records: int
    size_bytes: int
    first_ms: int | None
    last_ms: int | None
    redriven: int
    samples: tuple[SampleView, ...]


def find(desk: Desk, name: str) -> Pipeline:
    cluster = desk.target.cluster
    if cluster is None:
        raise NotFound("the console shows pipelines only for a cluster on this machine")
    return Pipeline.from_file(cluster.home.config_file, name, cluster.home)


def start(desk: Desk, name: str) -> None:
    """The pipeline runs in the background."""
    found = find(desk, name)
    connection, registry = desk.target.connection, desk.target.registry
    wanted = {
        "file": str((found.declaration.file or Path()).absolute()),
        "bootstrap": connection.bootstrap,
        "properties": dict(connection.properties),
        "registry": registry.url if registry else None,
        "master": None,
    }
    desk.change(lambda: Driver(found.home).start(found.folder, wanted))


def stop(desk: Desk, name: str) -> None:
    """The pipeline has ended after the batch at work."""
    found = find(desk, name)

    def end() -> None:
        stopped = Driver(found.home).stop(found.folder)
        if not stopped and found.folder.is_locked:
            raise Failed(
                f"{name} does not run in the background", why="a terminal runs it", hint="Ctrl-C in that terminal"
            )

    desk.change(end)


def dead_letters(desk: Desk, name: str) -> list[DeadLettersView]:
    """The records that the pipeline could not use, by rule and reason."""
    found = find(desk, name)
    explain = lambda letter: diagnose(letter, found.declaration, desk.target.registry)  # noqa: E731
    return [_view(group) for group in summary(_letters(desk, found, Wanted(name)), _SAMPLES, explain)]


def send_again(desk: Desk, name: str, rules: Sequence[str], reasons: Sequence[str], *, dry: bool) -> RedriveReport:
    """The chosen dead letters are in their topics again; with `dry` it is only counted what would be sent."""
    found = find(desk, name)
    chosen = Wanted(name, tuple(rules), tuple(reasons))

    def send() -> RedriveReport:
        return redrive(desk.target.connection, _letters(desk, found, chosen), RedrivePlan(dry=dry))

    return send() if dry else desk.change(send)


def _letters(desk: Desk, found: Pipeline, wanted: Wanted) -> Iterator[Letter]:
    place = found.folder.dead_letters(found.declaration)
    return islice(letters(desk.target.connection, place, wanted), _MOST_LETTERS)


def _view(group: Group) -> DeadLettersView:
    look = Look()
    return DeadLettersView(
        outcome=group.outcome,
        rule=group.rule,
        reason=group.reason,
        records=group.records,
        size_bytes=group.bytes,
        first_ms=group.first_ms,
        last_ms=group.last_ms,
        redriven=group.redriven,
        samples=tuple(
            SampleView(
                origin=s.origin,
                timestamp_ms=s.timestamp_ms,
                size_bytes=s.size_bytes,
                key=look.one(s.key, None, None),
                value=look.one(s.value, None, None),
                words=s.words,
            )
            for s in group.samples
        ),
    )
