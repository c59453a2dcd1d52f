"""The example `orders`, whole: a real PostgreSQL, Debezium in Connect, a topic, a pipeline, a Delta table."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.read.consumer import consume
from headrace.runtime.waiting import eventually
from tests.postgres import PASSWORD, Server
from tests.spark.pipelines import Workshop, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders"
_TOPIC = "shop.public.orders"
_COLUMNS = "id, customer, status, amount, ordered_at"


@pytest.fixture
def connected(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with a Connect worker."""
    cluster = Cluster(tmp_path / ".headrace", brokers=1, services=("connect",))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(wipe=True)


def _change(server: Server, rng: random.Random, rounds: int) -> None:
    """Inserts, updates and deletes, some of them several to a transaction, some taken back."""
    with server.connect("shop") as connection:
        for number in range(rounds):
            with connection.transaction(force_rollback=number % 11 == 10):
                for _ in range(rng.randrange(1, 4)):
                    known = [row[0] for row in connection.execute("select id from orders").fetchall()]
                    kind = rng.choice(("insert", "update", "update", "delete")) if len(known) > 5 else "insert"
                    amount, customer = round(rng.uniform(-5, 500), 2), rng.choice(("Ada", "Grace\n", "Ädsger", ""))
                    if kind == "insert":
                        text = "insert into orders (customer, amount) values (%s, %s)"
                        connection.execute(text, (customer, amount))
                    elif kind == "update":
                        text = "update orders set status = %s, amount = %s where id = %s"
                        connection.execute(text, (f"step {number}", amount, rng.choice(known)))
                    else:
                        connection.execute("delete from orders where id = %s", (rng.choice(known),))


def _arrived(cluster: Cluster, server: Server) -> bool:
    """Debezium has sent everything up to a row that is inserted now."""
    mark = server.rows("insert into orders (customer, amount) values ('mark', 0) returning id", "shop")[0][0]

    def seen() -> bool:
        records = [json.loads(record.value) for record in consume(cluster, _TOPIC) if record.value]
        return any((found["payload"]["after"] or {}).get("id") == mark for found in records)

    eventually(seen, 60)
    return True


def test_the_whole_circle(connected: Cluster, postgres: Server, spark: SparkSession, tmp_path: Path) -> None:
    postgres.rows("create database shop")
    for statement in (EXAMPLE / "orders.sql").read_text().split(";")[:-1]:
        postgres.rows(statement, "shop")
    shutil.copy(EXAMPLE / "headrace.toml", tmp_path)
    assert connected.install_connector("postgres")
    settings: dict[str, Any] = json.loads((EXAMPLE / "connector.json").read_text())
    own = {"database.port": str(postgres.port), "database.user": "headrace", "database.password": PASSWORD}
    connected.connectors.create("shop", {**settings, **own})
    eventually(lambda: _TOPIC in {topic.name for topic in Kafka(connected).topics()}, 60)
    shop, rng = Workshop(tmp_path, connected, spark), random.Random(7)
    written = 0
    for rounds in (40, 60):
        _change(postgres, rng, rounds)
        assert _arrived(connected, postgres)
        written += totals(shop.run("orders"))["written"]
        expected = postgres.rows(f"select {_COLUMNS} from orders", "shop")
        found = [tuple(row[name] for name in _COLUMNS.split(", ")) for row in shop.rows("tables/orders")]
        at_utc = [(*row[:4], row[4].timestamp()) for row in expected]
        assert sorted((*row[:4], row[4].timestamp()) for row in found) == sorted(at_utc)
    history = shop.rows("tables/orders_history")
    assert written > len(history) > len(expected)
    assert {row["id"] for row in history if row["current"]} == {row[0] for row in expected}
    connected.connectors.delete("shop")
    eventually(lambda: postgres.rows("select 1 from pg_replication_slots where active") == [], 30)
    postgres.rows("select pg_drop_replication_slot(slot_name) from pg_replication_slots", "shop")
