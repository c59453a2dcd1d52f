"""Commands for schemas: what a registry holds, what it would take, and how versions differ."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, F, Trunk, any_registry, cli, yes_option
from headrace.cli.output import print_json
from headrace.errors import NotFound, UsageError

if TYPE_CHECKING:
    from headrace.schemas import Reference, Registry, Schema, Version

_LEVELS = [
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
]  # fmt: skip


@cli.group(cls=Trunk)
@any_registry
def schema() -> None:
    """List, show, register, check and compare schemas.

    Works with any registry that has Confluent's API. The subject of a topic's values is TOPIC-value, of its keys
    TOPIC-key.
    """


def _references(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[Reference, ...]:
    """`taxi.Vendor=vendor:1`, any number of times."""
    from headrace.schemas import Reference

    found = []
    for text in given:
        name, _equals, target = text.partition("=")
        subject, _colon, version = target.rpartition(":")
        if not (name and subject and version.isdecimal()):
            raise click.BadParameter(f"{text!r} is not of the form NAME=SUBJECT:VERSION")
        found.append(Reference(name, subject, int(version)))
    return tuple(found)


def _schema_file(command: F) -> F:
    """Adds SUBJECT and FILE, what there is to say about the file, and the options of any registry."""
    kind = click.option(
        "--type",
        "kind",
        type=click.Choice(["avro", "json-schema", "protobuf"]),
        help="[default: by the suffix, else by the content]",
    )
    reference = click.option(
        "--reference",
        "references",
        multiple=True,
        callback=_references,
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that FILE refers to by name, repeatable.",
    )
    decorated = kind(reference(any_registry(click.pass_obj(command))))
    return click.argument("subject")(click.argument("file", type=click.Path(path_type=Path))(decorated))  # type: ignore[return-value]


def _read(file: Path, kind: str | None, references: tuple[Reference, ...]) -> Schema:
    from headrace.schemas import Kind, read_schema

    kinds: dict[str, Kind] = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
    return read_schema(file, kinds[kind] if kind else None, references)


@schema.command("list")
@click.option("--deleted", is_flag=True, help="Include soft-deleted subjects.")
@any_registry
@click.pass_obj
def list_(app: App, deleted: bool) -> None:
    """List the subjects with their latest version.

    \b
    headrace schema list
    headrace schema list --json | jq -r '.[].subject'
    """
    with app.registry() as registry:
        rows = [_listed(registry, subject) for subject in registry.subjects(deleted=deleted)]
    headings = ("subject", "type", "versions", "latest id", "compatibility")
    app.show(rows, headings, [list(row.values()) for row in rows])
    if not rows and not app.json:
        app.say("no subjects yet: headrace schema register SUBJECT FILE creates one")


def _listed(registry: Registry, subject: str) -> dict[str, object]:
    versions = registry.versions(subject, deleted=True)
    try:
        latest: Version | None = registry.version(subject)
    except NotFound:  # all its versions are softly deleted
        latest = None
    return {
        "subject": subject,
        "type": latest.schema.kind if latest else None,
        "versions": len(versions) if latest else 0,
        "id": latest.id if latest else None,
        "compatibility": registry.compatibility(subject) if latest else "deleted",
    }


@schema.command()
@click.argument("subject", required=False)
@click.option("--version", type=int, metavar="N", help="[default: the latest]")
@click.option("--id", "number", type=int, metavar="N", help="The schema of this id, instead of a subject.")
@any_registry
@click.pass_obj
def show(app: App, subject: str | None, version: int | None, number: int | None) -> None:
    """Show a schema, by subject or by id.

    \b
    headrace schema show rides-value
    headrace schema show rides-value --version 1
    headrace schema show --id 7
    """
    with app.registry() as registry:
        found = _found(registry, subject, version, number)
    if app.json:
        print_json(found | {"schema": _parsed(found["schema"])})
        return
    text = _parsed(found["schema"])
    click.echo(text if isinstance(text, str) else json.dumps(text, indent=2, ensure_ascii=False))
    app.say(", ".join(f"{name} {value}" for name, value in found.items() if name != "schema" and value))


def _found(registry: Registry, subject: str | None, version: int | None, number: int | None) -> dict[str, Any]:
    if (subject is None) == (number is None):
        raise UsageError("a schema is known by its subject or by its id", hint="schema show SUBJECT, or --id N")
    if subject is not None:
        known = registry.version(subject, version if version is not None else "latest")
        return {
            "subject": known.subject, "version": known.version, "id": known.id, "type": known.schema.kind,
            "schema": known.schema.text, "references": [asdict(r) for r in known.schema.references],
        }  # fmt: skip
    schema_of_id = registry.schema(number or 0)
    if schema_of_id is None:
        raise NotFound(f"the registry has no schema with the id {number}", hint="headrace schema list shows ids")
    versions = [{"subject": name, "version": at} for name, at in registry.versions_of(number or 0)]
    return {"id": number, "type": schema_of_id.kind, "schema": schema_of_id.text, "versions": versions}


def _parsed(text: str) -> Any:
    """A schema as JSON where it is JSON; a .proto is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text.rstrip("\n")


@schema.command()
@_schema_file
def register(app: App, /, subject: str, file: Path, **given: Any) -> None:
    """Register FILE as the next version of SUBJECT.

    A schema that is already registered keeps its id. An incompatible one is refused; the error names the field and a
    change that would pass. Exit code 1.

    \b
    headrace schema register rides-value ride.avsc
    headrace schema register rides-value ride.avsc --reference taxi.Vendor=vendor:1
    """
    wanted = _read(file, given["kind"], given["references"])
    with app.registry() as registry:
        number = registry.register(subject, wanted)
        known = registry.registered(subject, wanted)
    version = known.version if known else None
    if app.json:
        print_json({"subject": subject, "version": version, "id": number, "type": wanted.kind})
    else:
        click.echo(number)
        app.say(f"{subject}: version {version}, id {number}")


@schema.command()
@_schema_file
def check(app: App, /, subject: str, file: Path, **given: Any) -> None:
    """Check whether FILE is compatible with SUBJECT. Nothing is registered; exit code 1 if it is not.

    \b
    headrace schema check rides-value ride.avsc && echo go on
    """
    from headrace.schemas import incompatible

    wanted = _read(file, given["kind"], given["references"])
    with app.registry() as registry:
        verdict = registry.check(subject, wanted)
    if app.json:
        print_json({"subject": subject, **asdict(verdict)})
        if not verdict.compatible:
            raise click.exceptions.Exit(1)
    elif not verdict.compatible:
        raise incompatible(subject, verdict, dry_run=True)
    else:
        versions = ", ".join(map(str, verdict.against))
        app.say(f"{subject} would accept it: {verdict.level} compatible with version {versions}")


@schema.command()
@click.argument("subject")
@any_registry
@click.pass_obj
def versions(app: App, subject: str) -> None:
    """List the versions of a subject, with the changes of each.

    \b
    headrace schema versions rides-value
    """
    from headrace.schemas import diff as differences

    with app.registry() as registry:
        known = [registry.version(subject, number) for number in registry.versions(subject)]
    rows: list[dict[str, Any]] = [
        {
            "version": one.version,
            "id": one.id,
            "type": one.schema.kind,
            "changes": [
                str(change)
                for change in (differences(before.schema, one.schema) if before.schema.kind == one.schema.kind else ())
            ],
        }
        for before, one in itertools.pairwise([known[0], *known])
    ]
    headings = ("version", "id", "type", "changes")
    app.show(rows, headings, [(r["version"], r["id"], r["type"], "; ".join(r["changes"])) for r in rows])


@schema.command()
@click.argument("subject")
@click.argument("old", required=False)
@click.argument("new", required=False)
@any_registry
@click.pass_obj
def diff(app: App, subject: str, old: str | None, new: str | None) -> None:
    """Show what changed between two versions of a subject; OLD and NEW are numbers or files.

    \b
    headrace schema diff rides-value               the latest version and the one before
    headrace schema diff rides-value 1 3
    headrace schema diff rides-value 3 ride.avsc   a version and a file
    """
    from headrace.schemas import diff as differences

    with app.registry() as registry:
        known = registry.versions(subject)
        if old is None and len(known) < 2:
            raise UsageError(f"{subject} has only version {known[0]}", hint="compare it with a file: schema diff "
                             f"{subject} {known[0]} FILE")  # fmt: skip
        before = _version_or_file(registry, subject, old or str(known[-2]))
        after = _version_or_file(registry, subject, new or str(known[-1]))
    changes = differences(before, after)
    if app.json:
        print_json([asdict(change) for change in changes])
        return
    for change in changes:
        click.echo(str(change))
    if not changes:
        app.say("no field differs")


def _version_or_file(registry: Registry, subject: str, text: str) -> Schema:
    return registry.version(subject, int(text)).schema if text.isdecimal() else _read(Path(text), None, ())


@schema.group(cls=Trunk)
@any_registry
def compatibility() -> None:
    """Get or set the compatibility level of subjects."""


@compatibility.command("get")
@click.argument("subject", required=False)
@any_registry
@click.pass_obj
def get(app: App, subject: str | None) -> None:
    """Show the level of SUBJECT, or the global level for subjects without their own.

    \b
    headrace schema compatibility get rides-value
    """
    with app.registry() as registry:
        level = registry.compatibility(subject)
    print_json({"subject": subject, "compatibility": level}) if app.json else click.echo(level)


@compatibility.command("set")
@click.argument("level", type=click.Choice([*_LEVELS, "default"], case_sensitive=False))
@click.argument("subject", required=False)
@any_registry
@click.pass_obj
def set_(app: App, level: str, subject: str | None) -> None:
    """Set the level of SUBJECT, or the global level; `default` removes the level of a subject.

    \b
    headrace schema compatibility set FULL rides-value
    """
    if level == "default" and subject is None:
        raise UsageError("the global level cannot be removed", hint="schema compatibility set BACKWARD")
    with app.registry() as registry:
        registry.set_compatibility(None if level == "default" else level, subject)  # type: ignore[arg-type]
        in_force = registry.compatibility(subject)
    print_json({"subject": subject, "compatibility": in_force}) if app.json else click.echo(in_force)


@schema.command()
@click.argument("subject")
@click.option("--version", type=int, metavar="N", help="Only this version. [default: the whole subject]")
@click.option("--hard", is_flag=True, help="Delete permanently: records that carry the ids may become unreadable.")
@yes_option
@any_registry
@click.pass_obj
def delete(app: App, subject: str, version: int | None, hard: bool, yes: bool) -> None:
    """Delete a version, or a subject with all of them.

    A soft delete unless --hard: the schema is hidden from writers, but records that carry its id stay readable.

    \b
    headrace schema delete rides-value --version 1
    headrace schema delete rides-value --hard --yes
    """
    with app.registry() as registry:
        known = registry.versions(subject, deleted=hard)
        doomed = known if version is None else [version]
        how = (
            "permanently: records that carry its id may become unreadable"
            if hard
            else "soft delete: records that carry its id stay readable"
        )
        app.confirm([f"{subject} version {number}, {how}" for number in doomed], yes=yes)
        gone = registry.delete(subject, version, hard=hard)
    if app.json:
        print_json({"subject": subject, "deleted": gone, "hard": hard})
    else:
        app.say(f"{subject}: deleted version {', '.join(map(str, gone))}")
