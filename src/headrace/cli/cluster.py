"""Commands for the life of a cluster and of its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, any_kafka, cli, everywhere
from headrace.cli.output import print_json, print_pairs, print_table
from headrace.cli.values import numbers, pairs, words
from headrace.text import duration, plural, size

if TYPE_CHECKING:
    from headrace.cluster import ClusterStatus
    from headrace.home import Home

#: Kafka calls fsync after each batch; a follower too, before the leader hears that it has the batch.
DURABLE = {"log.flush.interval.messages": "1"}
# A file that grew while we slept this long is read on; a person sees no delay.
_FOLLOW_EVERY_S = 0.2


@cli.command()
@click.option("--brokers", type=int, metavar="N", help="Number of brokers, 1 to 9. [default: 3]")
@click.option(
    "--controllers", type=int, metavar="N", help="Separate controllers. [default: none, brokers are controllers too]"
)
@click.option("--racks", callback=words, metavar="A,B", help="Racks to spread the brokers over, round robin.")
@click.option("--node-ids", callback=numbers, metavar="101,102,…", help="Ids of the brokers. [default: 1,2,3,…]")
@click.option(
    "--base-port",
    type=int,
    metavar="P",
    help="First port; the others follow it. [default: free ports, remembered for the next start]",
)
@click.option(
    "--set",
    "kafka",
    multiple=True,
    callback=pairs,
    metavar="KEY=VALUE",
    help="A native Kafka property for every node; an empty value removes it.",
)
@click.option(
    "--with",
    "services",
    callback=words,
    metavar="A,B",
    help="Services to run beside the brokers: registry, connect, console, or all of them; "
    "spark keeps a Spark driver ready for pipelines: 1 to 3 GB of memory, not part of all.",
)
@click.option(
    "--restart",
    type=click.Choice(["no", "on-failure"]),
    help="on-failure: restart a node that died, up to 5 times in 10 minutes. [default: no]",
)
@click.option(
    "--durable",
    is_flag=True,
    help="Flush every record to disk before acknowledging it: slower, but it survives a power cut.",
)
@click.option("--plugins", type=click.Path(path_type=Path), metavar="DIR", help="Folder with your own Connect plugins.")
@everywhere
@click.pass_obj
def up(app: App, /, kafka: dict[str, str], durable: bool, **flags: object) -> None:
    """Start a cluster here, or start the existing one again.

    It returns when every broker answers and has led a write that all replicas acknowledged.
    You can repeat it: running nodes stay up, missing ones are started, changed settings are rolled out.

    \b
    headrace up
    headrace up --brokers 6 --racks a,b
    headrace up --brokers 3 --controllers 3 --set log.retention.ms=86400000
    headrace up --with registry,connect
    headrace up --with spark
    """  # fmt: skip
    began = time.monotonic()
    if durable:
        kafka = {**DURABLE, **kafka}
    cluster = app.cluster(kafka=kafka or None, **flags)
    cluster.up()
    if app.json:
        print_json(cluster.status().to_json())
        return
    spec = cluster.spec
    app.say(
        f"ready in {time.monotonic() - began:.1f} s: {plural(len(spec.brokers), 'broker')}, Kafka {spec.kafka_version}"
    )
    app.say(f"home {cluster.home.root}")
    for service in spec.services:
        app.say(f"{service.name} {spec.url(service.name) or 'ready'}")
    click.echo(cluster.bootstrap)


@cli.command()
@click.option("--wipe", is_flag=True, help="Remove the cluster's data, too.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@everywhere
@click.pass_obj
def down(app: App, wipe: bool, yes: bool) -> None:
    """Stop every process of the cluster. The data stay, unless you add --wipe.

    --wipe removes the cluster's files. Tables, checkpoints and lab results in the home stay and are listed.

    Background pipelines finish their current batch and stop first; one in the foreground waits for the next `up`, or
    ends if it uses the Spark of `--with spark`.

    \b
    headrace down
    headrace down --wipe --yes
    """
    from headrace.pipeline import Background

    cluster = app.cluster()
    removed = cluster.wipeable() if wipe else []
    if removed:
        app.confirm([f"{path}  {size(count)}" for path, count in removed], yes=yes, verb="remove")
    background = Background(cluster.home)
    if background.is_running:
        app.say("· stopping background pipelines after their current batch")
        background.end()
    cluster.down(wipe=wipe)
    _end_labs(app, cluster.home, wipe=wipe)
    kept = ", ".join(f"{path.name} ({size(count)})" for path, count in cluster.kept())
    if not removed:
        app.say("down: no process of the cluster is left")
    elif not kept:
        app.say("removed: nothing of the cluster is left")
    else:
        app.say(f"removed: the cluster and its records; kept in {cluster.home.root}: {kept}")


def _end_labs(app: App, home: Home, *, wipe: bool) -> None:
    """What a killed run of labs has left is gone; one that is going on is only mentioned."""
    from headrace.cluster import LabRuns

    labs = LabRuns(home)
    if labs.at_work:
        app.say(f"labs keep running on a cluster of their own: {labs.at_work}")
    elif found := labs.describe():
        app.say(f"ending labs: {found}")
    labs.remove(wipe=wipe)


@cli.command()
@any_kafka
@click.pass_obj
def status(app: App) -> None:
    """Show the nodes, the controller, the quorum and the partitions.

    If a node is dead, it reports why, and the exit code is 1.

    \b
    headrace status
    headrace status --json | jq -r .bootstrap
    headrace status --bootstrap kafka.example:9092
    """
    from headrace.cluster import LabRuns, foreign_status

    foreign = app.foreign()
    found = foreign_status(foreign) if foreign else app.cluster().status()
    labs = None if foreign else LabRuns(app.cluster().home).describe()
    if app.json:
        print_json(found.to_json() | {"labs": labs})
    else:
        _print_status(found)
        if labs:
            click.echo(f"labs: {labs} (headrace down ends them)")
    if found.state == "absent":
        raise click.exceptions.Exit(4)
    if any(node.state == "dead" for node in found.nodes):
        raise click.exceptions.Exit(1)


def _print_status(found: ClusterStatus) -> None:
    if found.state == "absent":
        click.echo(f"no cluster in {found.home}: headrace up creates one")
        return
    facts: dict[str, object] = {"state": click.style(found.state, fg="green" if found.state == "up" else "yellow")}
    facts |= {"bootstrap": found.bootstrap}
    services = (("registry", found.registry), ("connect", found.connect), ("console", found.console))
    facts |= {name: url for name, url in services if url}
    facts |= {"home": found.home, "kafka": found.kafka_version} if found.home else {"cluster id": found.cluster_id}
    if found.quorum:
        names = {node.node_id: node.name for node in found.nodes}
        leader = found.quorum.leader_id
        facts["controller"] = f"{names.get(leader, f'node {leader}')} (epoch {found.quorum.leader_epoch})"
        lags = ", ".join(f"{names.get(v.node_id, v.node_id)} lag {v.lag}" for v in found.quorum.voters if v.voter)
        facts["quorum"] = f"{lags}; {found.quorum.high_watermark} metadata records"
    if found.topics is not None:
        facts["topics"] = (
            f"{found.topics} with {found.partitions} partitions; "
            f"{found.under_replicated} under-replicated, {found.offline} offline (with internal topics)"
        )
    if found.connectors:
        facts["connectors"] = ", ".join(f"{c.name} {c.shown_state.lower()}" for c in found.connectors)
        facts |= {f"  {c.name}": f"waiting: {c.waiting}" for c in found.connectors if c.waiting}
    if found.problem:
        facts["problem"] = found.problem
    if found.home and any(node.state == "running" for node in found.nodes) and found.watcher != "running":
        facts["watcher"] = f"{found.watcher}: dead nodes are noticed late; headrace up starts it again"
    elif found.restart != "no":
        facts["restart"] = found.restart
    print_pairs(facts)
    click.echo()
    _print_nodes(found)


def _print_nodes(found: ClusterStatus) -> None:
    if not found.home:
        rows = [(n.name, n.node_id, n.roles, n.state, f"{n.host}:{n.port}", n.rack or "-") for n in found.nodes]
        print_table(("node", "id", "roles", "state", "address", "rack"), rows)
        return
    racks = any(node.rack for node in found.nodes)  # without them, the table fits on 80 columns
    print_table(
        ("node", "id", "roles", "state", "pid", "port", *(["rack"] if racks else []), "uptime", "memory", "data"),
        [
            (n.name, "-" if n.node_id is None else n.node_id, n.roles, n.state, n.pid or "-",
             n.port or n.controller_port or "-", *([n.rack or "-"] if racks else []),
             duration(n.uptime_s), size(n.memory_bytes), size(n.log_dir_bytes))
            for n in found.nodes
        ],
    )  # fmt: skip
    for node in found.nodes:
        if node.reason:
            click.echo(f"{node.name} is dead: {node.reason}")


def _node_command(name: str, done: str, text: str) -> None:
    """Adds the command `name NODE`, which calls the verb of the same name."""

    @cli.command(
        name,
        help=f"{text}\n\nNODE: 2, broker-2, controller-1, registry, connect, console (headrace status lists them).",
    )
    @click.argument("node")
    @everywhere
    @click.pass_obj
    def command(app: App, node: str) -> None:
        cluster = app.cluster()
        verb: Callable[[str], None] = getattr(cluster, name)
        began = time.monotonic()
        verb(node)
        app.say(f"{cluster.name_of(node)} {done} ({time.monotonic() - began:.1f} s)")


_node_command("start", "runs", "Start a stopped or dead node and wait until it has joined.")
_node_command("stop", "is stopped", "Stop a node gracefully: it hands its leaderships over first.")
_node_command("restart", "runs again", "Stop a node gracefully and start it with the current settings.")
_node_command("kill", "is dead", "Kill a node with SIGKILL, as a crash would.")
_node_command("pause", "is paused", "Freeze a node with SIGSTOP, as a stalled machine would.")
_node_command("resume", "is resumed", "Resume a paused node.")


@cli.command()
@click.argument("node")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until Ctrl-C.")
@click.option("-n", "--lines", default=50, help="Number of lines, from the end.")
@everywhere
@click.pass_obj
def logs(app: App, node: str, follow: bool, lines: int) -> None:
    """Show the log of a node.

    \b
    headrace logs 2
    headrace logs broker-2 -f
    """
    from headrace.cluster import last_lines

    path = app.cluster().log(node)
    for line in last_lines(path, lines):
        click.echo(line)
    if follow:
        for text in _growth(path):
            click.echo(text, nl=False)


def _growth(path: Path) -> Iterator[str]:
    """What is appended to the file from now on; a rotated file is opened anew."""
    file = path.open(encoding="utf-8", errors="replace")
    file.seek(0, os.SEEK_END)
    while True:
        text = file.read()
        if text:
            yield text
            continue
        time.sleep(_FOLLOW_EVERY_S)
        if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
            file.close()
            file = path.open(encoding="utf-8", errors="replace")


@cli.command()
@any_kafka
@click.pass_obj
def doctor(app: App) -> None:
    """Check this machine and this cluster, and suggest fixes.

    With --bootstrap it checks that Kafka: do all brokers answer, is there a controller, are replicas in sync?

    \b
    headrace doctor
    headrace doctor --bootstrap kafka.example:9092
    """
    from dataclasses import asdict

    from headrace.cluster import examine, examine_foreign

    foreign = app.foreign()
    findings = list(examine_foreign(foreign) if foreign else examine(app.cluster()))
    if app.json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            colour = {"ok": "green", "warning": "yellow", "problem": "red"}[finding.level]
            click.echo(f"{click.style(finding.level.ljust(8), fg=colour)} {finding.what}")
            if finding.fix:
                click.echo(f"{'':9}try: {finding.fix}")
    if any(finding.level == "problem" for finding in findings):
        raise click.exceptions.Exit(3)


@cli.command()
@everywhere
@click.pass_obj
def config(app: App) -> None:
    """Show every setting, its value, and where the value comes from.

    The first source that has a value wins: flag, environment, headrace.toml, this cluster, default.
    """
    from headrace.config import KEYS

    cluster = app.cluster()
    held = cluster.config
    if app.json:
        print_json({
            key.name: {"value": held.value(key.name), "origin": held.origins[key.name], "environment": key.variable}
            for key in KEYS
        })  # fmt: skip
        return
    app.say(f"file {cluster.home.config_file}{'' if cluster.home.config_file.is_file() else ' (none there)'}")
    print_table(
        ("setting", "value", "origin", "meaning"),
        [(key.name, _shown(held.value(key.name)), held.origins[key.name], key.help) for key in KEYS],
    )


def _shown(value: object) -> str:
    if value is None or value in ((), {}):
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name}={text}" for name, text in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
