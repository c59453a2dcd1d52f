"""Why a record was not delivered in time, asked of the cluster at that moment.

librdkafka retries what a broker refuses for now (too few replicas in sync, no leader); when the time is over it reports
the timeout alone. What it retried for is found out here. The answer holds for some seconds, because a whole queue times
out at once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.kafka.client import Connection
from headrace.kafka.kafka import Kafka
from headrace.kafka.model import Topic
from headrace.kafka.write.librdkafka import TIMED_OUT

_ASK_WITHIN_S = 10.0
_HOLDS_S = 5.0
_CONNECT_WITHIN_S = 2.0


class Undeliverable:
    """What is wrong with the partitions of one topic, for a producer with these settings."""

    def __init__(self, connection: Connection, topic: str, settings: Mapping[str, object] | None = None) -> None:
        self._connection = connection
        self._topic = topic
        given = {**connection.properties, **(settings or {})}
        # Only who waits for all replicas in sync is refused for want of them.
        self._acks_all = str(given.get("acks", given.get("request.required.acks", "all"))) in {"all", "-1"}
        self._known: dict[int, str] = {}
        self._asked_at = -_HOLDS_S

    def reason(self, partition: int, said: str) -> str:
        """The client's reason; for a timeout, with what the cluster says about the partition."""
        if said != TIMED_OUT:
            return said
        if time.monotonic() - self._asked_at > _HOLDS_S:
            self._known = self._ask()
            self._asked_at = time.monotonic()
        found = self._known.get(partition) or self._known.get(-1)
        return f"{found} (the record timed out)" if found else said

    def _ask(self) -> dict[int, str]:
        """By partition; -1 stands for all of them."""
        try:
            with Kafka(self._connection, timeout_s=_ASK_WITHIN_S) as admin:
                topic = admin.topic(self._topic)
                live = admin.live_brokers()
                needed = self._needed(admin)
        except HeadraceError as error:
            return {-1: error.problem}
        found: dict[int, str] = {}
        for p in topic.partitions:
            away = [f"broker {replica}" for replica in p.replicas if replica not in live]
            down = f"; {' and '.join(away)} not alive" if away else ""
            if p.leader < 0:
                found[p.partition] = f"no leader{down}"
            elif len(p.isr) < min(needed, len(p.replicas)):
                found[p.partition] = f"not enough replicas in sync: {len(p.isr)} of {needed} needed{down}"
        return found or self._silent(topic, live)

    def _silent(self, topic: Topic, live: Mapping[int, str]) -> dict[int, str]:
        """By partition: brokers that must store its records and do not answer. Without a controller the ISR is old."""
        silent = {broker for p in topic.partitions for broker in p.isr}
        silent = {broker for broker in silent if not _answers(live.get(broker))}
        found: dict[int, str] = {}
        for p in topic.partitions:
            needed = p.isr if self._acks_all else (p.leader,)
            if brokers := [f"broker {broker}" for broker in needed if broker in silent]:
                found[p.partition] = f"{' and '.join(brokers)} in the last known ISR, but not answering"
        return found

    def _needed(self, admin: Kafka) -> int:
        """How many replicas must be in sync; 1 if the producer does not wait for them or the setting is hidden."""
        if self._acks_all:
            with suppress(HeadraceError):  # who may write may not be allowed to read settings
                return int(admin.topic_configs(self._topic)["min.insync.replicas"].value or 1)
        return 1


def _answers(address: str | None) -> bool:
    if address is None:
        return False
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_WITHIN_S):
            return True
    except OSError:
        return False
