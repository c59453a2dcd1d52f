"""Commands for groups: who reads, how far they have got, and where they go on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, Trunk, any_kafka, cli, yes_option
from headrace.cli.output import print_json, print_pairs, print_table
from headrace.cli.values import parsed

if TYPE_CHECKING:
    from headrace.kafka import Group, Kafka, Member, PlannedOffset


@cli.group(cls=Trunk)
@any_kafka
def group() -> None:
    """List, describe, reset and delete consumer groups."""


def _kafka(app: App) -> Kafka:
    from headrace.kafka import Kafka

    return Kafka(app.connection())


@group.command("list")
@any_kafka
@click.pass_obj
def list_(app: App) -> None:
    """List the groups of every type.

    Types are classic, consumer (KIP-848), share and streams; members are shown for the first two.

    \b
    headrace group list
    """
    with _kafka(app) as kafka:
        found = kafka.groups.list()
    documents = [
        {"group": g.group, "type": g.type, "state": g.state, "protocol": g.protocol, "coordinator": g.coordinator,
         "members": _member_count(g)}
        for g in found
    ]  # fmt: skip
    app.show(
        documents,
        ("group", "type", "state", "protocol", "members", "coordinator"),
        [(g.group, g.type, g.state, g.protocol, _known(_member_count(g)), g.coordinator) for g in found],
    )
    if not found and not app.json:
        app.say("no groups yet: a group is created when its first member joins or commits")


@group.command()
@click.argument("name", metavar="GROUP")
@any_kafka
@click.pass_obj
def describe(app: App, name: str) -> None:
    """Show state, members, committed offsets and lag.

    Lag counts the records that can still be read. '-': no offset is committed, or no broker answered.

    \b
    headrace group describe reporting
    headrace group describe reporting --json | jq .lag
    """
    with _kafka(app) as kafka:
        found = kafka.groups.describe(name)
        address = kafka.live_brokers().get(found.coordinator, "?")
    coordinator = f"broker {found.coordinator} ({address})"
    if app.json:
        print_json({**found.to_json(), "coordinator": coordinator})
    else:
        _print_description(app, found, coordinator)


def _print_description(app: App, found: Group, coordinator: str) -> None:
    known = found.members is not None
    print_pairs(
        {
            "group": found.group,
            "type": found.type,
            "state": found.state,
            "protocol": found.protocol,
            "assignor": found.assignor or "-",
            "coordinator": coordinator,
            "members": _known(_member_count(found)),
            "lag": "-" if found.lag is None else f"{found.lag:,}",
        }
    )
    if not known and found.protocol == "connect":
        app.say("its members are Connect workers, not consumers: headrace connector list shows what they run")
    elif not known:
        app.say(
            f"members and offsets of a {found.type} group cannot be shown: no Python client supports the request yet"
        )
    if found.members:
        click.echo()
        print_table(
            ("member", "client", "host", "partitions"),
            [(m.member_id, m.client_id, m.host, _assigned(m)) for m in found.members],
        )
    if found.offsets:
        click.echo()
        print_table(
            ("topic", "partition", "committed", "begin", "end", "lag", "client"),
            [
                (o.topic, o.partition, _known(o.committed), _known(o.begin), _known(o.end), _known(o.lag),
                 o.client_id or "-")
                for o in found.offsets
            ],
        )  # fmt: skip


def _member_count(group: Group) -> int | None:
    return None if group.members is None else len(group.members)


def _assigned(member: Member) -> str:
    """`breadcrumbs/0,1 trips/2`."""
    topics: dict[str, list[str]] = {}
    for name, number in member.partitions:
        topics.setdefault(name, []).append(str(number))
    return " ".join(f"{name}/{','.join(numbers)}" for name, numbers in topics.items()) or "-"


def _topics(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[tuple[str, int | None]]:
    """`--topic T` or `--topic T:2`, any number of times."""
    topics: list[tuple[str, int | None]] = []
    for text in given:
        name, colon, number = text.partition(":")
        if not name or (colon and not number.isdecimal()):
            raise click.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:PARTITION")
        topics.append((name, int(number) if colon else None))
    return topics


@group.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--to", required=True, metavar="WHERE", help="beginning, end, an offset, a time (2026-05-01T12:00, -1h), shift:-100"
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_topics,
    metavar="T[:P]",
    help="Only this topic or partition. [default: all topics with committed offsets]",
)
@click.option("--execute", "--yes", is_flag=True, help="Apply the change; otherwise it is only shown.")
@any_kafka
@click.pass_obj
def reset(app: App, name: str, to: str, topics: list[tuple[str, int | None]], execute: bool) -> None:
    """Reset the committed offsets of a group.

    Shows what would change; --execute applies it. The group must have no members.
    An offset out of range becomes the nearest valid one.

    \b
    headrace group reset reporting --to beginning
    headrace group reset reporting --to -1h --topic breadcrumbs --execute
    headrace group reset reporting --to shift:-100 --topic breadcrumbs:2 --execute
    """
    from headrace.kafka import ResetTo

    wanted = parsed("--to", ResetTo.parse, to)
    with _kafka(app) as kafka:
        plan = kafka.groups.plan_reset(name, wanted, topics)
        if execute:
            kafka.groups.reset(name, plan)
    if app.json:
        print_json({"group": name, "executed": execute, "offsets": [asdict(planned) for planned in plan]})
    else:
        _print_plan(plan)
    for planned in plan:
        if planned.note:
            app.say(f"{planned.topic}/{planned.partition}: {planned.note}")
    app.say(f"{name} continues there" if execute else "nothing was changed: --execute applies it")


def _print_plan(plan: tuple[PlannedOffset, ...]) -> None:
    print_table(
        ("topic", "partition", "committed", "new", "change"),
        [
            (p.topic, p.partition, _known(p.committed), p.target, _known(p.target - p.committed))
            if p.committed is not None
            else (p.topic, p.partition, "-", p.target, "-")
            for p in plan
        ],
    )


@group.command()
@click.argument("names", metavar="GROUP…", nargs=-1, required=True)
@yes_option
@any_kafka
@click.pass_obj
def delete(app: App, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups and their committed offsets; the records stay.

    \b
    headrace group delete reporting
    """
    wanted = tuple(dict.fromkeys(names))
    with _kafka(app) as kafka:
        doomed = [kafka.groups.describe(name) for name in wanted]
        app.confirm([_doomed(found) for found in doomed], yes=yes)
        kafka.groups.delete(wanted)
    if app.json:
        print_json({"deleted": list(wanted)})
    app.say(f"deleted: {', '.join(wanted)}")


def _doomed(found: Group) -> str:
    offsets = "-" if found.offsets is None else len(found.offsets)
    return f"{found.group}  {found.type} group, committed offsets {offsets}, lag {_known(found.lag)}"


def _known(number: int | None) -> object:
    return "-" if number is None else number
