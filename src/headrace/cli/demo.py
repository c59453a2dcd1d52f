"""`headrace demo`: the main job, end to end, in a folder of its own that is removed at the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, cli, everywhere
from headrace.cli.output import print_table, say
from headrace.errors import Failed
from headrace.text import plural

if TYPE_CHECKING:
    from headrace.cluster import Cluster
    from headrace.kafka.write import ProduceReport
    from headrace.pipeline import Pipeline

_TOPIC = "breadcrumbs"
_RIDES = "datatalkclub.yellow_taxi_rides"
# As many as the buses of a city leave in a day: a file of 125 MB.
_A_DAY = 390_000
_ARCHIVE_WITHIN_S = 180.0


@cli.command()
@click.option("--records", type=click.IntRange(100), default=_A_DAY, help="Breadcrumbs to send.")
@click.option("--stay/--no-stay", default=None, help="Stay until Ctrl-C. [default: on a terminal]")
@everywhere
@click.pass_obj
def demo(app: App, records: int, stay: bool | None) -> None:
    """See it all in two minutes: a cluster, a killed broker, tables.

    A day's bus breadcrumbs go through three brokers, one of which is killed, and on through Spark into tables. Then
    taxi rides in Avro follow, with three versions of their schema in the registry.

    On a terminal it stays until Ctrl-C, so that you can look around; without one it ends by itself.
    It leaves nothing running and nothing behind.
    """
    from headrace.cluster import Cluster

    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    cluster = Cluster(folder / "home", brokers=3, services=("registry",), progress=app.progress)
    stays = sys.stdin.isatty() and sys.stdout.isatty() if stay is None else stay
    try:
        _run(cluster, records)
        _on_spark(app, cluster, folder)
        if stays:
            _wait_for_interrupt(cluster)
    finally:
        cluster.down(wipe=True)
        shutil.rmtree(folder)
        _finish_archive(app)
        app.say("the demo is over: nothing of it runs, nothing of it is left")


def _run(cluster: Cluster, records: int) -> None:
    from headrace.kafka import Kafka, NewTopic
    from headrace.kafka.write import produce

    began = time.monotonic()
    cluster.up()
    _heading(f"1. three Kafka brokers and a schema registry, up in {time.monotonic() - began:.1f} s")
    click.echo(f"   {cluster.bootstrap}, {cluster.registry}")
    with Kafka(cluster) as admin:
        admin.create_topics([NewTopic(_TOPIC, partitions=6, replication=3)])

    _heading(f"2. {plural(records, 'bus breadcrumb')} into the topic {_TOPIC}: 6 partitions, 3 replicas each")
    report = produce(cluster, _TOPIC, _breadcrumbs(records))
    _show_produced(report)

    _heading("3. read by a group of two")
    _show_group(cluster)

    with Kafka(cluster) as admin:
        leader = admin.topic(_TOPIC).partitions[0].leader
    _heading(f"4. broker {leader} is killed (SIGKILL) while records flow")
    sent, gap = _produce_under_fire(cluster, leader)
    _show_produced(sent)
    click.echo(f"   longest pause between acknowledgements: {gap:.1f} s; the other brokers took over")
    click.echo(f"   ({cluster.timers})")
    cluster.start(leader)
    click.echo(f"   broker {leader} is back")
    _check(cluster, report.acknowledged + sent.acknowledged)


def _heading(text: str) -> None:
    click.echo(click.style(f"\n{text}", bold=True))


def _breadcrumbs(count: int, seed: int = 7) -> Iterator[object]:
    """Breadcrumbs as a transit agency's files have them; one in a hundred is damaged on purpose."""
    from headrace.samples import breadcrumbs

    return (made.text for made in breadcrumbs(records=count, seed=seed, bad=0.01).made())


def _show_produced(report: ProduceReport) -> None:
    rate = report.acknowledged / max(report.seconds, 0.001)
    click.echo(f"   {report.acknowledged:,} acknowledged, {report.failed:,} failed, {rate:,.0f} records/s")
    if not report.complete:
        raise Failed("not every record was acknowledged", why=str(report.error or f"{report.failed} failed"))


def _show_group(cluster: Cluster) -> None:
    from headrace.kafka.read import ConsumeOptions, reading

    run = reading(cluster, [_TOPIC], options=ConsumeOptions(group="demo", members=2))
    read = sum(len(batch.messages) for batch in run.batches())
    by_member: Counter[int] = Counter()
    owned: dict[int, list[int]] = {}
    for (member, _, partition), span in sorted(run.report.spans.items()):
        by_member[member] += span.records
        owned.setdefault(member, []).append(partition)
    for member, records in sorted(by_member.items()):
        click.echo(f"   member {member}: {records:,} records of partitions {', '.join(map(str, owned[member]))}")
    click.echo(f"   processed a total of {read:,} records")


def _produce_under_fire(cluster: Cluster, victim: int) -> tuple[ProduceReport, float]:
    """Records flow for some seconds, and the victim dies in the middle of it."""
    from headrace.kafka.write import Pace, ProduceOptions, produce

    acknowledged_at = [time.monotonic()]
    seen = [0]
    gaps = [0.0]

    def watch(report: ProduceReport) -> None:
        now = time.monotonic()
        if report.acknowledged > seen[0]:
            gaps.append(now - acknowledged_at[0])
            seen[0], acknowledged_at[0] = report.acknowledged, now

    killer = threading.Timer(2.0, cluster.kill, [victim])
    killer.start()
    try:
        options = ProduceOptions(pace=Pace(rate=1000), on_progress=watch)
        report = produce(cluster, _TOPIC, _breadcrumbs(6000, seed=8), options=options)
    finally:
        killer.join()
    return report, max(gaps)


def _check(cluster: Cluster, acknowledged: int) -> None:
    """Nothing that was acknowledged is missing, nothing is there twice."""
    from headrace.kafka.read import consume

    places: Counter[object] = Counter((record.partition, record.offset) for record in consume(cluster, _TOPIC))
    _heading("5. the account")
    click.echo(f"   acknowledged {acknowledged:,}, read back {len(places):,}")
    if len(places) != acknowledged:
        raise Failed("the account does not balance", why=f"{acknowledged - len(places):+,} records")
    click.echo(click.style("   nothing lost, nothing duplicated", fg="green"))


def _on_spark(app: App, cluster: Cluster, folder: Path) -> None:
    """Two pipelines on one Spark: breadcrumbs in JSON, then rides in Avro."""
    _heading("6. the pipeline of examples/breadcrumbs: typed, checked, into four Delta tables, on Spark")
    breadcrumbs = _example(cluster, folder, "breadcrumbs")
    began = time.monotonic()
    with breadcrumbs.session(progress=app.progress) as spark:
        click.echo(f"   Spark {spark.version} is ready after {time.monotonic() - began:.1f} s")
        _show_run(app, cluster, breadcrumbs, spark, "7. the ledger: what became of every record")
        _heading("8. a look at the table of speeds, without Spark")
        _show_table(folder / "breadcrumbs/tables/speeds", ("trip", "vehicle", "at", "meters", "speed"))
        _heading(
            "9. taxi rides in Avro: three versions of their schema in one topic, registered in the schema registry"
        )
        _send_rides(cluster)
        _show_run(app, cluster, _example(cluster, folder, "taxi"), spark, "10. their ledger, and revenue by the hour")
        _show_table(folder / "taxi/tables/revenue", ("vendor", "window_start", "revenue", "rides"))


def _example(cluster: Cluster, folder: Path, name: str) -> Pipeline:
    """The example as it stands, in a folder of its own."""
    from headrace.pipeline import Pipeline, example

    (folder / name).mkdir()
    shutil.copy(example(name), folder / name)
    return Pipeline.from_file(folder / name, name, cluster.home)


def _show_run(app: App, cluster: Cluster, pipeline: Pipeline, spark: Any, heading: str) -> None:
    """Every record of the topic goes through the pipeline, shown while it runs; then what became of each."""
    from headrace.cli.display import Display
    from headrace.cli.pipeline import LEDGER, ledger_cells
    from headrace.kafka import connect

    with Display(app, pipeline, connect(cluster)) as display:
        report = pipeline.run(cluster, once=True, spark=spark, observer=display.observer)
    _heading(heading)
    print_table(LEDGER, [ledger_cells(line) for line in report.ledger])
    rules = [f"{count:,} {outcome} by {rule!r}" for outcome, rule, count in pipeline.ledger.by_rule()]
    click.echo("   " + ", ".join(rules[:4]) + (", …" if len(rules) > 4 else ""))


def _send_rides(cluster: Cluster) -> None:
    from headrace.kafka import Kafka, NewTopic
    from headrace.kafka.write import ProduceOptions, Shaping, produce
    from headrace.samples import RIDE_VERSIONS, ride_schema, taxi
    from headrace.schemas import Registry, Schema, SchemaCodec

    with Kafka(cluster) as admin:
        admin.create_topics([NewTopic(_RIDES, partitions=4, replication=3)])
    with Registry(cluster.registry) as registry:
        for version in RIDE_VERSIONS:
            schema = Schema(ride_schema(version))
            number = registry.register(f"{_RIDES}-value", schema)
            options = ProduceOptions(shaping=Shaping(value_codec=SchemaCodec(registry, written=(number, schema))))
            rides = taxi(records=5000, seed=version, shape=f"v{version}")
            click.echo(f"   version {version}, id {number}:")
            _show_produced(produce(cluster, _RIDES, rides, options=options))


def _finish_archive(app: App) -> None:
    """Nothing of the demo runs when it says so; a first one may have set going what makes the next start faster."""
    from headrace.pipeline import archive_is_made

    if not archive_is_made(0):
        app.say("· making Spark's next start faster")
        archive_is_made(_ARCHIVE_WITHIN_S)


def _show_table(path: Path, columns: tuple[str, ...]) -> None:
    from headrace.tables import Query, read_table

    found = read_table(path).head(Query(columns, None, None, 5))
    rows = [list(row.values()) for row in found.to_pylist()]
    print_table(found.schema.names, [[_short(cell) for cell in row] for row in rows])


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.1f}"
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


def _wait_for_interrupt(cluster: Cluster) -> None:
    click.echo()
    say(f"the cluster stays up at {cluster.bootstrap} until Ctrl-C; in another terminal:")
    say(f"  headrace status --home '{cluster.home.root}'")
    say(f"  headrace consume {_TOPIC} --home '{cluster.home.root}' --until count:5")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        say("")
