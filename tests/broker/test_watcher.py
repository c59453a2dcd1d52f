"""Who has died is reported at once, named with its reason, and started again if that is wished; slow is not dead."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import struct
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from kafka.record.util import calc_crc32c as crc32c

from headrace import Kafka, produce
from headrace.cluster import Cluster
from headrace.cluster.status import ClusterStatus
from headrace.kafka.model import NewTopic
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace, processes_of


class Logs:
    """What the nodes say from now on, also in logs that are rotated meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        found = [log.stat() for log in self._files()]
        self._ends = {(log.st_dev, log.st_ino): log.st_size for log in found}

    def _files(self) -> list[Path]:
        return [log for name in self.cluster.nodes for log in self.cluster.log(name).parent.glob("server.log*")]

    def say(self, text: str) -> bool:
        for log in self._files():
            with suppress(FileNotFoundError), log.open("rb") as file:
                found = os.fstat(file.fileno())
                file.seek(self._ends.get((found.st_dev, found.st_ino), 0))
                if text.encode() in file.read():
                    return True
        return False


@pytest.mark.parametrize("paused", [False, True])
def test_the_controllers_hear_of_an_active_controller_that_is_gone(
    headrace_faults: Cluster, run: Headrace, paused: bool
) -> None:
    cluster = headrace_faults

    def whole() -> ClusterStatus | None:
        found = cluster.status()
        return found if found.state == "up" and found.controller else None

    old = eventually(whole, 60)
    assert old
    node = next(node for node in old.nodes if node.node_id == old.controller)
    logs = Logs(cluster)
    assert node.pid
    os.kill(node.pid, signal.SIGSTOP if paused else signal.SIGKILL)

    eventually(lambda: logs.say(f"Unfenced broker {node.node_id} has requested and been granted fencing"), 60)
    assert logs.say("Becoming the active controller at epoch")
    if paused:
        cluster.resume(node.name)
    else:
        seen = run("status", home=cluster.home.root)
        assert seen.code == 1
        assert f"{node.name} is dead: killed" in seen.out
        cluster.start(node.name)
    eventually(lambda: cluster.status().state == "up", 60)


def test_up_goes_on_where_it_timed_out_and_a_node_that_fails_comes_back(run: Headrace, home: Path) -> None:
    words = ("up", "--brokers", 1, "--restart", "on-failure", "--durable", "--set", "num.partitions=2")
    late = run(*words, home=home, env={"HEADRACE_READY_TIMEOUT_S": "0"})
    assert late.code == 1
    assert "its nodes are still starting" in late.err
    assert "waiting for: broker-1 to register" in late.err
    [pid] = (node.pid for node in Cluster(home).node_states())
    assert run("up", home=home).code == 0
    assert [pid] == [node.pid for node in Cluster(home).node_states()]
    assert Cluster(home).config.cluster.kafka == {"num.partitions": "2", "log.flush.interval.messages": "1"}

    assert pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: Cluster(home).node_states()[0].pid not in {pid, None}, 60)
    eventually(lambda: Cluster(home).status().state == "up", 60)

    survives_hostile_bytes(Cluster(home))
    run("kill", 1, home=home)
    log = home / "watcher" / "server.log"
    eventually(lambda: "headrace kill" in log.read_text(encoding="utf-8"), 30)
    assert run("up", "--restart", "no", home=home).code == 0
    [pid] = (node.pid for node in Cluster(home).node_states())
    assert pid
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: f"(pid {pid}, unexpectedly)" in log.read_text(encoding="utf-8"), 60)
    seen = run("status", "--json", home=home)
    assert seen.code == 1
    assert "terminated by SIGTERM" in seen.json()["nodes"][0]["reason"]
    assert run("down", home=home).code == 0
    assert processes_of(home) == []


_GZIP, _SNAPPY = 1, 2
_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
# Snappy streams of a few bytes that promise half a gigabyte, or two: as Java frames them, and plain.
_PROMISES = (
    _XERIAL + struct.pack(">i", 500_000_000) + b"\0" * 4,
    _XERIAL + struct.pack(">i", 2_147_483_600) + b"\0" * 8,
    _XERIAL + struct.pack(">i", 15) + b"\x80\xca\xb5\xee\x01" + b"\0" * 10,
    b"\x80\xca\xb5\xee\x01" + b"\0" * 12,
)
# A record begins with its size: half a gigabyte, and two.
_RECORD_SIZES = (b"\x80\x94\xeb\xdc\x03" + b"\0" * 6, b"\xfe\xff\xff\xff\x0f" + b"\0" * 6)


def survives_hostile_bytes(cluster: Cluster) -> None:
    """The broker refuses what promises more than its heap holds, and takes the next record."""
    [node] = cluster.node_states()
    assert node.port
    with Kafka(cluster) as admin:
        # Of the second one the broker packs every batch again, so it reads the records.
        admin.create_topics([NewTopic("hostile", 1, 1), NewTopic("repacked", 1, 1, {"compression.type": "lz4"})])
    requests = [produce_request("hostile", batch(promise, _SNAPPY)) for promise in _PROMISES]
    requests += [produce_request("repacked", batch(gzip.compress(size), _GZIP)) for size in _RECORD_SIZES]
    requests += [struct.pack(">i", 99_000_000) + b"\0\0\0\0"] * 20  # too large a request, which never comes
    sent = []
    for request in requests:
        sent.append(socket.create_connection(("127.0.0.1", node.port), 30))
        sent[-1].sendall(request)
    for connection in sent:
        with connection:
            connection.recv(4)  # the size of an answer, or the end
    holds_back_requests_that_never_end(node.port)
    assert produce(cluster, "hostile", ["mine"]).acknowledged == 1
    assert cluster.node_states()[0].pid == node.pid


def holds_back_requests_that_never_end(port: int) -> None:
    """Twenty requests of an allowed size are more than the heap holds: a few are read, the others have to wait."""
    announced, more = struct.pack(">i", 39_000_000), bytes(12_000_000)  # more than all buffers of a connection hold
    with ExitStack() as opened:
        sent = [opened.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(20)]
        for connection in sent[:2]:
            connection.sendall(announced + more)
        for connection in sent[2:]:
            connection.sendall(announced)
        sent[-1].settimeout(2)
        with pytest.raises(TimeoutError):
            sent[-1].sendall(more)


def batch(payload: bytes, codec: int) -> bytes:
    """A batch of one record, compressed by that codec, or so it says."""
    body = struct.pack(">hiqqqhii", codec, 0, 0, 0, -1, -1, -1, 1) + payload
    checked = struct.pack(">ibI", 0, 2, crc32c(body)) + body
    return struct.pack(">qi", 0, len(checked)) + checked


def produce_request(topic: str, records: bytes) -> bytes:
    named = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">hhihhhii", 0, 3, 1, -1, -1, 1, 10_000, 1) + named + struct.pack(">iii", 1, 0, len(records))
    return struct.pack(">i", len(body) + len(records)) + body + records
