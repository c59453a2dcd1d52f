"""Commands for topics: make them, look at them, change them, empty them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from headrace.cli.app import App, Trunk, any_kafka, cli, unset_option, yes_option
from headrace.cli.output import print_json, print_pairs, print_table
from headrace.cli.values import pairs
from headrace.errors import UsageError
from headrace.text import duration, plural, size, thousands

if TYPE_CHECKING:
    from headrace.kafka import Kafka, Topic

# What a person wants to know of a new topic (the summary of a web form), in this order.
_SUMMARY = ("min.insync.replicas", "cleanup.policy", "retention.ms", "retention.bytes")


@cli.group(cls=Trunk)
@any_kafka
def topic() -> None:
    """Create, list, describe, alter, delete and clean topics."""


def _admin(app: App) -> Kafka:
    from headrace.kafka import Kafka

    return Kafka(app.connection())


def _assignment(_: click.Context, __: click.Parameter, given: str | None) -> list[list[int]] | None:
    """`1:2:3,2:3:1`: the replicas of each partition, the preferred leader first."""
    try:
        return [[int(broker) for broker in replicas.split(":")] for replicas in given.split(",")] if given else None
    except ValueError:
        raise click.BadParameter(f"{given!r} is not of the form 1:2:3,2:3:1") from None


_set = click.option(
    "--set", "configs", multiple=True, callback=pairs, metavar="KEY=VALUE", help="A Kafka topic setting, repeatable."
)


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="[default: num.partitions of the brokers]")
@click.option(
    "--replication",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replicas of each partition. [default: default.replication.factor of the brokers]",
)
@_set
@click.option(
    "--assignment",
    callback=_assignment,
    metavar="1:2:3,2:3:1,…",
    help="The brokers of each partition, its preferred leader first, instead of the two numbers.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave an existing topic as it is.")
@any_kafka
@click.pass_obj
def create(app: App, /, name: str, if_not_exists: bool, **wanted: Any) -> None:
    """Create a topic and describe it.

    \b
    headrace topic create breadcrumbs --partitions 6 --replication 3
    headrace topic create latest --set cleanup.policy=compact --set min.insync.replicas=2
    headrace topic create placed --assignment 1:2:3,2:3:1
    """
    from headrace.kafka import NewTopic

    with _admin(app) as admin:
        there = if_not_exists and any(topic.name == name for topic in admin.topics(internal=True))
        if not there:
            admin.create_topics([NewTopic(name, **wanted)])
        found = admin.topic(name)
        _print_summary(app, admin, found, created=not there)
        if there:
            app.say(f"{name} exists already and is left as it is")
            _say_differences(app, found, wanted)


def _print_summary(app: App, admin: Kafka, found: Topic, *, created: bool) -> None:
    configs = admin.topic_configs(found.name)
    held = {name: configs[name].value for name in _SUMMARY if name in configs}
    facts = {"topic": found.name, "partitions": len(found.partitions), "replication": found.replication}
    if app.json:
        print_json({**facts, **{name: _number(value) for name, value in held.items()}, "created": created})
    else:
        print_pairs({**facts, **{name: _with_unit(name, value) for name, value in held.items()}})


def _say_differences(app: App, found: Topic, wanted: dict[str, object]) -> None:
    has = {"partitions": len(found.partitions), "replication": found.replication}
    for what, count in has.items():
        if wanted[what] not in (None, count):
            app.say(f"warning: {what} {count}, not {wanted[what]}")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include Kafka's internal topics.")
@click.option("--size", "sizes", is_flag=True, help="Include records and bytes, which takes a little longer.")
@any_kafka
@click.pass_obj
def list_(app: App, internal: bool, sizes: bool) -> None:
    """List the topics and their problems.

    \b
    headrace topic list
    headrace topic list --size --json | jq '.[].bytes'
    """
    with _admin(app) as admin:
        found = admin.topics(internal=internal)
        rows: list[dict[str, Any]] = [
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "replication": topic.replication,
                "under_replicated": topic.under_replicated,
                "offline": topic.offline,
            }
            for topic in found
        ]
        if sizes and found:
            held = admin.with_offsets(admin.topic_sizes([topic.name for topic in found]))
            for row, topic in zip(rows, held, strict=True):
                row |= {"offsets": topic.offsets, "bytes": topic.size_bytes}
            _say_silent(app, {broker for topic in held for broker in topic.silent_brokers})
    if app.json:
        print_json(rows)
        return
    headings = ("topic", "partitions", "replication", "under-replicated", "offline")
    print_table(
        (*headings, "offsets", "bytes") if sizes else headings,
        [[size(v) if k == "bytes" else "-" if v is None else v for k, v in row.items()] for row in rows],
    )
    if not rows:
        app.say("no topics yet: headrace topic create NAME creates one")


@topic.command()
@click.argument("name")
@click.option(
    "--all", "everything", is_flag=True, help="Show all settings, not only those that differ from the default."
)
@any_kafka
@click.pass_obj
def describe(app: App, name: str, everything: bool) -> None:
    """Describe a topic.

    Shows its id and settings, and for each partition the leader, replicas, ISR, ELR, offsets and bytes.
    ISR: the replicas in sync with the leader. ELR: replicas outside the ISR that may still become leader.
    Offsets are those from begin to end: markers of transactions and compacted records have some, too. Records are
    counted where the topic is small. Bytes are those of one copy, the leader's. '-' is what no broker could answer.

    \b
    headrace topic describe breadcrumbs
    headrace topic describe breadcrumbs --all
    """
    with _admin(app) as admin:
        found = admin.describe(name)
    _say_silent(app, found.silent_brokers)
    records = _counted_records(app, found)
    if app.json:
        print_json({**found.to_json(), "records": records})
        return
    print_pairs(
        {
            "topic": found.name,
            "topic id": found.topic_id or "-",
            "partitions": len(found.partitions),
            "replication": found.replication,
            "records": thousands(records) if records is not None or not found.offsets else f"up to {found.offsets:,}",
            "bytes": size(found.size_bytes),
        }
    )
    click.echo()
    _print_partitions(found)
    click.echo()
    _print_configs(found, everything)


def _counted_records(app: App, found: Topic) -> int | None:
    """The number of records in the topic, where it is small enough to be counted."""
    from headrace.kafka.browse import Browser

    with Browser(app.connection()) as browser:
        return browser.count(found)


def _print_partitions(found: Topic) -> None:
    elrs = found.eligible_leaders
    print_table(
        ("partition", "leader", "replicas", "isr", "elr", "begin", "end", "offsets", "bytes"),
        [
            (p.partition, p.leader if p.leader >= 0 else "none", _ids(p.replicas), _ids(p.isr),
             _ids(elrs.get(p.partition, ())), _known(p.begin), _known(p.end), _known(p.offsets), size(p.size_bytes))
            for p in found.partitions
        ],
    )  # fmt: skip


def _print_configs(found: Topic, everything: bool) -> None:
    shown = [config for config in found.configs.values() if everything or config.source != "default"]
    if not shown:
        click.echo("every setting has Kafka's default")
        return
    print_table(
        ("setting", "value", "source", "default"),
        [(c.name, _with_unit(c.name, c.value), c.source, _with_unit(c.name, c.default)) for c in shown],
    )


@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(min=1), metavar="N", help="New number of partitions; it can only grow."
)
@_set
@unset_option
@any_kafka
@click.pass_obj
def alter(app: App, name: str, partitions: int | None, configs: dict[str, str], unset: tuple[str, ...]) -> None:
    """Change a topic. Nothing is changed unless Kafka accepts all of it.

    \b
    headrace topic alter breadcrumbs --set retention.ms=3600000 --unset segment.ms
    headrace topic alter breadcrumbs --partitions 12
    """
    if partitions is None and not configs and not unset:
        raise UsageError("nothing to change was given", hint="--partitions N, --set KEY=VALUE or --unset KEY")
    both = set(configs) & set(unset)
    if both:
        raise UsageError(f"{min(both)} is both set and unset")
    with _admin(app) as admin:
        before = len(admin.topic(name).partitions)
        admin.alter_topic(name, partitions=partitions, configs={**configs, **dict.fromkeys(unset)})
        found = admin.describe(name)
    if partitions is not None and partitions > before:
        app.say(
            f"warning: keys map to other partitions from now on ({before} became {partitions}): "
            "the records of a key are in order only within each of the two times"
        )
    if app.json:
        print_json(found.to_json())
        return
    print_pairs({"topic": name, "partitions": len(found.partitions), "replication": found.replication})
    click.echo()
    _print_configs(found, everything=False)


@topic.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@yes_option
@any_kafka
@click.pass_obj
def delete(app: App, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics and all their records.

    Shows what they hold and asks; returns when they are gone.

    \b
    headrace topic delete breadcrumbs
    headrace topic delete old older --yes
    """
    wanted = tuple(dict.fromkeys(names))
    with _admin(app) as admin:
        doomed = _holdings(app, admin, wanted)
        app.confirm([f"{held['topic']}  {_amount(held)}" for held in doomed], yes=yes)
        admin.delete_topics(wanted)
    if app.json:
        print_json({"deleted": doomed})
    app.say(f"deleted: {', '.join(wanted)}")


def _holdings(app: App, admin: Kafka, names: tuple[str, ...]) -> list[dict[str, object]]:
    topics = admin.with_offsets(admin.require_topics(names, wanted=False))
    offsets = {topic.name: topic.offsets for topic in topics}
    sizes = admin.topic_sizes(names)
    _say_silent(app, {broker for topic in sizes for broker in topic.silent_brokers})
    return [
        {"topic": s.name, "partitions": len(s.partitions), "offsets": offsets[s.name], "bytes": s.size_bytes}
        for s in sizes
    ]


@topic.command()
@click.argument("name")
@click.option(
    "--how",
    type=click.Choice(["truncate", "read"]),
    default="truncate",
    help="truncate deletes the records; read reads and discards all of them.",
)
@yes_option
@any_kafka
@click.pass_obj
def clean(app: App, name: str, how: Literal["truncate", "read"], yes: bool) -> None:
    """Empty a topic, or read all of it once.

    Truncating deletes the records for every reader, up to the current end; the topic and its settings stay.
    Reading changes nothing, neither records nor any group's offsets: it counts what can be read.

    \b
    headrace topic clean breadcrumbs --yes
    headrace topic clean breadcrumbs --how read
    """
    with _admin(app) as admin:
        if how == "truncate":
            admin.require_truncatable(name)
            app.confirm([f"{name}  {_amount(_holdings(app, admin, (name,))[0])}"], yes=yes)
        done = admin.clean_topic(name, how=how)
    if app.json:
        print_json(
            {"topic": name, "how": how, "offsets": done.offsets, "records": done.records, "bytes": done.size_bytes}
        )
    else:
        amount = {"offsets": f"{done.offsets:,}"} if done.records is None else {"records": f"{done.records:,}"}
        print_pairs({"topic": name, "how": how, **amount, "bytes": size(done.size_bytes)})
    if how == "truncate":
        app.say("the brokers free the disk at their next check: log.retention.check.interval.ms")


@topic.command()
@click.argument("names", metavar="[NAME…]", nargs=-1)
@any_kafka
@click.pass_obj
def elect(app: App, names: tuple[str, ...]) -> None:
    """Elect the preferred leaders.

    The preferred leader of a partition is the first of its replicas. After a broker was away, others lead in its place:
    this moves the leaders back, of these topics or of all, where the preferred one is in sync. No record is moved.

    \b
    headrace topic elect
    headrace topic elect breadcrumbs
    """
    with _admin(app) as admin:
        done = admin.elect_preferred(tuple(dict.fromkeys(names)))
    if app.json:
        print_json(done.as_json())
    elif done.moved:
        print_table(("topic", "partition"), done.moved)
    for (name, number), why in done.refused.items():
        app.say(f"{name}/{number} keeps its leader: {why}")
    app.say(f"{plural(len(done.moved), 'partition')} got the preferred leader")


@topic.command("size")
@click.argument("names", metavar="[NAME…]", nargs=-1)
@any_kafka
@click.pass_obj
def size_(app: App, names: tuple[str, ...]) -> None:
    """Bytes stored, by topic, partition and broker.

    'bytes' counts one replica, the leader's; a broker's column counts the replicas on that broker.
    With --json a single topic is a series of one point, {"data": [{"timestamp": …, "value": …}], …}, and several
    are {"topics": [ … ]} of them.

    \b
    headrace topic size
    headrace topic size breadcrumbs --json | jq '.data[0].value'
    """
    with _admin(app) as admin:
        found = admin.topic_sizes(tuple(dict.fromkeys(names)))
    _say_silent(app, {broker for topic in found for broker in topic.silent_brokers})
    if app.json:
        documents = [topic.sizes_to_json() for topic in found]
        print_json(documents[0] if len(names) == 1 else {"topics": documents})
    elif names:
        _print_partition_sizes(found)
    else:
        _print_topic_sizes(found)


def _print_topic_sizes(found: tuple[Topic, ...]) -> None:
    brokers = sorted({broker for topic in found for broker in topic.broker_bytes})
    print_table(
        ("topic", "partitions", "bytes", *(f"broker {broker}" for broker in brokers)),
        [
            (s.name, len(s.partitions), thousands(s.size_bytes), *(thousands(s.broker_bytes.get(b)) for b in brokers))
            for s in found
        ],
    )


def _print_partition_sizes(found: tuple[Topic, ...]) -> None:
    brokers = sorted({broker for topic in found for broker in topic.broker_bytes})
    rows: list[tuple[object, ...]] = []
    for s in found:
        for p in s.partitions:
            on_brokers = (thousands(p.bytes_by_broker.get(broker)) for broker in brokers)
            rows.append((s.name, p.partition, p.leader, thousands(p.size_bytes), *on_brokers))
        in_all = (thousands(s.broker_bytes.get(broker)) for broker in brokers)
        rows.append((s.name, "", "", thousands(s.size_bytes), *in_all))
    print_table(("topic", "partition", "leader", "bytes", *(f"broker {broker}" for broker in brokers)), rows)


@topic.command("which-partition")
@click.argument("name")
@click.argument("keys", metavar="KEY…", nargs=-1, required=True)
@any_kafka
@click.pass_obj
def which_partition(app: App, name: str, keys: tuple[str, ...]) -> None:
    """Show the partition of records with a key.

    The same for headrace, Java and Spark: murmur2 of the key, modulo the number of partitions.

    \b
    headrace topic which-partition breadcrumbs 3404 2219
    """
    from headrace.kafka.write import partition_of

    with _admin(app) as admin:
        found = admin.topic(name)
    rows = [(key, partition_of(key.encode(errors="surrogateescape"), len(found.partitions))) for key in keys]
    app.show([{"key": key, "partition": partition} for key, partition in rows], ("key", "partition"), rows)


# -- how things are written -------------------------------------------------------------------------------------


def _say_silent(app: App, brokers: Any) -> None:
    for broker in sorted(brokers):
        app.say(f"warning: broker {broker} does not answer: what only it knows is shown as '-'")


def _with_unit(name: str, value: str | None) -> str:
    """`604800000 (7 d 0 h)`; the huge number by which Kafka means no limit is said in words."""
    number = _number(value)
    if not isinstance(number, int) or not name.endswith((".ms", ".bytes")):
        return "-" if value is None else value
    if number == -1 or number >= 2**63 - 1:
        return f"{value} (no limit)"
    if number < 1000:
        return str(value)
    return f"{value} ({duration(number / 1000) if name.endswith('.ms') else size(number)})"


def _number(value: str | None) -> int | str | None:
    return int(value) if value is not None and value.lstrip("-").isdecimal() else value


def _amount(held: dict[str, Any]) -> str:
    """`6 partitions, up to 1,000 records, 24.0 kB`."""
    records = "an unknown number of" if held["offsets"] is None else f"up to {held['offsets']:,}"
    return f"{held['partitions']} partitions, {records} records, {size(held['bytes'])}"


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "-"


def _known(number: int | None) -> object:
    return "-" if number is None else number
