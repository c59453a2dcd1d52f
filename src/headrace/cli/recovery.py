"""Commands for what went wrong in a pipeline: dead letters and their way back, checkpoints and how they move."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Trunk, any_kafka, registry_option
from headrace.cli.output import counted, print_json, print_table, size
from headrace.cli.pipeline import find, pipeline, registry_of
from headrace.errors import NotFound, UsageError

if TYPE_CHECKING:
    from headrace.pipeline.dead_letters import Letter, Wanted
    from headrace.pipeline.flow import Flow
    from headrace.pipeline.pipeline import Pipeline

_name = click.argument("name")
_file = click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="File that declares it. [default: headrace.toml in this folder or a parent]",
)
_yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
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


def _wanted(found: Pipeline, **chosen: tuple[str, ...]) -> Wanted:
    from headrace.pipeline.dead_letters import Span, Wanted

    spans = tuple(Span.parse(text) for text in chosen["spans"])
    topics = found.declaration.topics
    for span in spans:
        if span.topic not in topics:
            raise UsageError(f"{found.name} does not read {span.topic}", hint=f"--at {topics[0]}/PARTITION/OFFSET")
    return Wanted(found.name, chosen["rules"], chosen["reasons"], runs=chosen["runs"], spans=spans)


@pipeline.command("dead-letters")
@_name
@_choosing
@click.option("--samples", type=click.IntRange(0), default=2, show_default=True, help="Number of samples per reason.")
@click.option(
    "--save", type=click.Path(path_type=Path), help="Write them to a file, to edit and send with redrive --edits."
)
@_file
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
    from headrace.pipeline.dead_letters import letters, summary
    from headrace.pipeline.diagnosis import diagnose

    found = find(app, file, name)
    registry = registry_of(app, found)
    place = found.folder.dead_letters(found.declaration)
    wanted = letters(app.connection(), place, _wanted(found, **chosen))
    if save:
        _save(app, found, wanted, save)
        return
    groups = summary(
        wanted,
        samples,
        lambda letter: diagnose(letter, found.declaration, registry),
    )
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
    app.say(f"{counted(total, 'dead letter')} in {place.kind} {place.target}")


def _save(app: App, found: Pipeline, wanted: Iterable[Letter], path: Path) -> None:
    from headrace.pipeline.redrive import write_for_editing

    try:
        with path.open("x", encoding="utf-8") as out:
            count = write_for_editing(wanted, out)
    except FileExistsError:
        raise UsageError(f"{path} exists", why="it may hold your edits", hint="another name") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=str(error)) from None
    if app.json:
        print_json({"file": str(path), "letters": count})
        return
    app.say(f"{counted(count, 'dead letter')} in {path}: edit values and keys, delete lines not to be sent, then")
    app.say(f"  headrace pipeline redrive {found.name} --edits {path} --dry-run")


def _group(group: Any) -> dict[str, Any]:
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
@_name
@_choosing
@click.option("--dry-run", is_flag=True, help="Check them against the current rules; send nothing.")
@click.option("--again", is_flag=True, help="Include those that were redriven before.")
@click.option(
    "--max-times", type=click.IntRange(1), default=3, show_default=True, help="Maximum number of redrives of a record."
)
@click.option("--keep-partition", is_flag=True, help="Send to the original partition, not by key.")
@click.option(
    "--edits", type=click.Path(path_type=Path), help="Send the edited ones of this file, see dead-letters --save."
)
@_file
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
    from headrace.pipeline.dead_letters import letters
    from headrace.pipeline.dry_run import Trial
    from headrace.pipeline.redrive import RedrivePlan, read_edits
    from headrace.pipeline.redrive import redrive as send

    found = find(app, file, name)
    plan = RedrivePlan(
        more.pop("again"), more.pop("max_times"), more.pop("keep_partition"),
        read_edits(edits) if edits else None, dry_run,
    )  # fmt: skip
    connection, place = app.connection(), found.folder.dead_letters(found.declaration)
    chosen = letters(connection, place, _wanted(found, **more))
    trial = Trial(partial(_todays_flow, app, found)) if dry_run else None
    report = send(connection, chosen, plan, trial)
    judged = sorted((*verdict, records) for verdict, records in trial.outcomes.items()) if trial else None
    if app.json:
        print_json({**report.document(), "dry_run": dry_run, "outcomes": judged})
        return
    verb = "would be sent" if dry_run else "sent"
    app.say(
        f"{counted(report.looked_at, 'dead letter')}: {report.sent:,} {verb}, {report.marked:,} redriven before, "
        f"{report.looping:,} stopped by the loop guard, {report.left_out:,} left out"
    )
    if judged:
        print_table(("outcome", "rule", "records"), judged)


def _todays_flow(app: App, found: Pipeline) -> Flow:
    """On a session that ends with this process."""
    from headrace.pipeline.run import Run

    spark = found.start_session(progress=app.progress)
    return Run(spark, found.declaration, found.folder, app.connection(), registry_of(app, found)).prepare()


# -- the checkpoint --------------------------------------------------------------------------------------------------


@pipeline.group(cls=Trunk)
def checkpoint() -> None:
    """Show, rewind, reset or fork the checkpoint of a pipeline."""


@checkpoint.command()
@_name
@click.option("--batches", type=click.IntRange(1), default=10, show_default=True, help="Number of the latest batches.")
@_file
@any_kafka
@click.pass_obj
def show(app: App, name: str, batches: int, file: Path | None) -> None:
    """Show the checkpoint of NAME, batch by batch."""
    from headrace.pipeline.checkpoint import Checkpoint

    found = find(app, file, name)
    held = Checkpoint(found.folder.checkpoint(found.declaration))
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
@_name
@click.option("--to", "target", required=True, metavar="PLACE", help="beginning, end, batch:7, a time, TOPIC:0=15,…")
@_yes
@_file
@any_kafka
@click.pass_obj
def rewind(app: App, name: str, target: str, yes: bool, file: Path | None) -> None:
    """Move NAME to other offsets; the old checkpoint is backed up.

    \b
    headrace pipeline checkpoint rewind breadcrumbs --to beginning
    headrace pipeline checkpoint rewind breadcrumbs --to 2026-05-01T12:00
    """
    from headrace.pipeline.rewind import Target, plan_rewind
    from headrace.pipeline.rewind import rewind as move

    found = find(app, file, name)
    plan = plan_rewind(found.folder, found.declaration, Target.parse(target), app.connection())
    if not app.json:
        print_table(
            ("topic", "partition", "from", "to", "read again", "skipped"),
            [(m.topic, m.partition, m.before, m.after, m.again, m.skipped) for m in plan.moves],
        )
    _agree(app, plan.consequences, yes)
    moved = move(found.folder, found.declaration, plan)
    _told(app, moved.document(), f"{name} continues from there; the old checkpoint is kept in {moved.backup}")


@checkpoint.command()
@_name
@_yes
@_file
@any_kafka
@click.pass_obj
def wipe(app: App, name: str, yes: bool, file: Path | None) -> None:
    """Delete the progress of NAME: its next run begins at `start`. The old checkpoint is backed up."""
    from headrace.pipeline.rewind import wipe as forget

    found = find(app, file, name)
    _agree(app, (f"{name} will read its topics again; rows in its tables stay, and may be duplicated",), yes)
    moved = forget(found.folder, found.declaration)
    _told(app, moved.document(), f"{name} starts over; the old checkpoint is kept in {moved.backup}")


@checkpoint.command()
@_name
@click.argument("new_name")
@_file
@any_kafka
@click.pass_obj
def fork(app: App, name: str, new_name: str, file: Path | None) -> None:
    """Let the pipeline NEW_NAME continue from the offsets of NAME."""
    from headrace.pipeline.folder import PipelineFolder
    from headrace.pipeline.rewind import fork as copy

    found = find(app, file, name)
    try:
        new = find(app, file, new_name)
        moved = copy(found.folder, found.declaration, new.folder, new.declaration)
    except NotFound:
        moved = copy(found.folder, found.declaration, PipelineFolder(found.home, new_name))
    for text in moved.warnings:
        app.say(click.style("warning: ", fg="yellow") + text)
    _told(app, moved.document(), f"{new_name} continues from the offsets of {name}")


def _agree(app: App, consequences: tuple[str, ...], yes: bool) -> None:
    for text in consequences:
        app.say(f"· {text}")
    if not yes and not click.confirm("move it?", err=True):
        raise UsageError("nothing was changed", why="the answer was no")


def _told(app: App, document: dict[str, Any], text: str) -> None:
    if app.json:
        print_json(document)
    else:
        app.say(text)
