"""Commands for what went wrong in a pipeline: dead letters and their way back, checkpoints and how they move."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Trunk, any_kafka, registry_option, yes_option
from headrace.cli.output import print_json, print_table
from headrace.cli.pipeline import file_option, find, name_argument, pipeline, registry_of
from headrace.errors import UsageError
from headrace.text import plural, size

if TYPE_CHECKING:
    from headrace.pipeline import Wanted

_SHOWN_BYTES = 100


def _choosing(command: Any) -> Any:
    """The options that say which letters are meant."""
    for option in (
        click.option("--at", "spans", multiple=True, metavar="TOPIC/P/OFFSET", help="Only of these original records."),
        click.option("--run", "runs", multiple=True, metavar="RUN", help="Only of this run."),
        click.option("--reason", "reasons", multiple=True, metavar="TEXT", help="Only if the reason contains this."),
        click.option(
            "--rule", "rules", multiple=True, metavar="RULE", help="Only of this rule: decode, select, a name."
        ),
    ):
        command = option(command)
    return command


def _wanted(**chosen: tuple[str, ...]) -> Wanted:
    from headrace.pipeline import Span, Wanted

    spans = tuple(Span.parse(text) for text in chosen["spans"])
    return Wanted(rules=chosen["rules"], reasons=chosen["reasons"], runs=chosen["runs"], spans=spans)


@pipeline.command("dead-letters")
@name_argument
@_choosing
@click.option("--samples", type=click.IntRange(0), default=2, help="Number of samples per reason.")
@click.option(
    "--save", type=click.Path(path_type=Path), help="Write them to a file, to edit and send with redrive --edits."
)
@file_option
@registry_option
@any_kafka
@click.pass_obj
def dead_letters(
    app: App, /, name: str, samples: int, save: Path | None, file: Path | None, **chosen: tuple[str, ...]
) -> None:
    """Show the dead letters of NAME by rule and reason, with samples and what is wrong with each.

    \b
    headrace pipeline dead-letters breadcrumbs
    headrace pipeline dead-letters breadcrumbs --rule decode --samples 10
    headrace pipeline dead-letters breadcrumbs --rule decode --save torn.ndjson
    """
    found = find(app, file, name)
    registry, connection, wanted = registry_of(app, found), app.connection(), _wanted(**chosen)
    if save:
        _show_saved(app, name, save, found.save_dead_letters(connection, save, wanted))
        return
    groups = found.dead_letters(connection, wanted, samples=samples, registry=registry)
    if app.json:
        print_json([_group(group) for group in groups])
        return
    for group in groups:
        click.echo(
            click.style(f"{group.records:,} by {group.rule}", bold=True)
            + f": {group.reason} ({size(group.bytes)}, {_time(group.first_ms)} to {_time(group.last_ms)})"
        )
        for sample in group.samples:
            click.echo(f"    {sample.origin}  {sample.words}")
            click.echo(f"      {_beginning(sample.value)}")
    total = sum(group.records for group in groups)
    app.say(f"{plural(total, 'dead letter')} in {found.dead_letter_queue.kind} {found.dead_letter_queue.target}")


def _show_saved(app: App, name: str, path: Path, count: int) -> None:
    if app.json:
        print_json({"file": str(path), "letters": count})
        return
    app.say(f"{plural(count, 'dead letter')} in {path}: edit values and keys, delete lines not to be sent, then")
    app.say(f"  headrace pipeline redrive {name} --edits {path} --dry-run")


def _group(group: Any) -> dict[str, object]:
    document = {**vars(group)}
    document["samples"] = [
        {**vars(sample), "key": _text(sample.key), "value": _text(sample.value)} for sample in group.samples
    ]
    return document


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _time(at_ms: int | None) -> str:
    return "-" if at_ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))


def _beginning(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = value[:_SHOWN_BYTES].decode(errors="backslashreplace")
    # Control characters would act on the terminal.
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown + (f" … ({size(len(value))})" if len(value) > _SHOWN_BYTES else "")


@pipeline.command()
@name_argument
@_choosing
@click.option("--dry-run", is_flag=True, help="Check them against the current rules; send nothing.")
@click.option("--again", is_flag=True, help="Include those that were redriven before.")
@click.option("--max-times", type=click.IntRange(1), default=3, help="Maximum number of redrives of a record.")
@click.option("--keep-partition", is_flag=True, help="Send to the original partition, not by key.")
@click.option(
    "--edits", type=click.Path(path_type=Path), help="Send the edited ones of this file, see dead-letters --save."
)
@file_option
@registry_option
@any_kafka
@click.pass_obj
def redrive(app: App, /, name: str, dry_run: bool, edits: Path | None, file: Path | None, **more: Any) -> None:
    """Send dead letters of NAME to their topics again: all, or those that the options select.

    A redriven dead letter is marked and not sent twice; the loop guard (--max-times) stops a record that keeps failing.

    \b
    headrace pipeline redrive breadcrumbs --dry-run
    headrace pipeline redrive breadcrumbs --rule "has a trip"
    headrace pipeline redrive breadcrumbs --edits torn.ndjson
    """
    from headrace.pipeline import RedrivePlan

    found = find(app, file, name)
    plan = RedrivePlan(
        more.pop("again"), more.pop("max_times"), more.pop("keep_partition"), edits, dry_run, try_rules=dry_run
    )
    registry = registry_of(app, found) if dry_run else None
    report = found.redrive(app.connection(), _wanted(**more), plan, registry=registry, progress=app.progress)
    if app.json:
        print_json({**report.document(), "dry_run": dry_run, "outcomes": report.outcomes})
        return
    verb = "would be sent" if dry_run else "sent"
    app.say(
        f"{plural(report.looked_at, 'dead letter')}: {report.sent:,} {verb}, {report.marked:,} redriven before, "
        f"{report.looping:,} stopped by the loop guard, {report.left_out:,} left out"
    )
    if report.outcomes:
        print_table(("outcome", "rule", "records"), report.outcomes)


# -- the checkpoint --------------------------------------------------------------------------------------------------


@pipeline.group(cls=Trunk)
def checkpoint() -> None:
    """Show, rewind, reset or fork the checkpoint of a pipeline."""


@checkpoint.command()
@name_argument
@click.option("--batches", type=click.IntRange(1), default=10, help="Number of the latest batches.")
@file_option
@any_kafka
@click.pass_obj
def show(app: App, name: str, batches: int, file: Path | None) -> None:
    """Show the checkpoint of NAME, batch by batch."""
    held = find(app, file, name).checkpoint
    if not held.exists:
        raise UsageError(f"{name} has no checkpoint yet", hint=f"headrace pipeline run {name} --once")
    if app.json:
        print_json(held.document())
        return
    print_table(
        ("batch", "planned", "records", "committed"),
        [
            (plan.batch, _time(plan.at_ms), plan.records, "yes" if plan.committed else "NO")
            for plan in held.batches(batches)
        ],
    )
    print_table(
        ("topic", "partition", "next offset"),
        [(topic, partition, offset) for (topic, partition), offset in sorted(held.position.items())],
    )
    app.say(f"{held.root}, {size(held.size_bytes)}, query {held.query_id}")


@checkpoint.command()
@name_argument
@click.option("--to", "target", required=True, metavar="PLACE", help="beginning, end, batch:7, a time, TOPIC:0=15,…")
@yes_option
@file_option
@any_kafka
@click.pass_obj
def rewind(app: App, name: str, target: str, yes: bool, file: Path | None) -> None:
    """Move NAME to other offsets; the old checkpoint is backed up.

    \b
    headrace pipeline checkpoint rewind breadcrumbs --to beginning
    headrace pipeline checkpoint rewind breadcrumbs --to 2026-05-01T12:00
    """
    found = find(app, file, name)
    plan = found.plan_rewind(target, app.connection())
    if not app.json:
        print_table(
            ("topic", "partition", "from", "to", "read again", "skipped"),
            [(m.topic, m.partition, m.before, m.after, m.again, m.skipped) for m in plan.moves],
        )
    _agree(app, plan.consequences, yes)
    moved = found.rewind(plan)
    _report(app, moved.document(), f"{name} continues from there; the old checkpoint is kept in {moved.backup}")


@checkpoint.command()
@name_argument
@yes_option
@file_option
@any_kafka
@click.pass_obj
def wipe(app: App, name: str, yes: bool, file: Path | None) -> None:
    """Delete the progress of NAME: its next run begins at `start`. The old checkpoint is backed up."""
    found = find(app, file, name)
    _agree(app, (f"{name} will read its topics again; rows in its tables stay, and may be duplicated",), yes)
    moved = found.wipe_checkpoint()
    kept = f"; the old checkpoint is kept in {moved.backup}" if moved.backup else ""
    _report(app, moved.document(), f"{name} starts over{kept}")


@checkpoint.command()
@name_argument
@click.argument("new_name")
@file_option
@any_kafka
@click.pass_obj
def fork(app: App, name: str, new_name: str, file: Path | None) -> None:
    """Let the pipeline NEW_NAME continue from the offsets of NAME."""
    moved = find(app, file, name).fork_checkpoint(new_name)
    for text in moved.warnings:
        app.say(click.style("warning: ", fg="yellow") + text)
    _report(app, moved.document(), f"{new_name} continues from the offsets of {name}")


def _agree(app: App, consequences: tuple[str, ...], yes: bool) -> None:
    for text in consequences:
        app.say(f"· {text}")
    if not yes and not click.confirm("move it?", err=True):
        raise UsageError("nothing was changed", why="the answer was no")


def _report(app: App, document: dict[str, object], text: str) -> None:
    if app.json:
        print_json(document)
    else:
        app.say(text)
