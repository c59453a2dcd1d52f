"""What a node that died can no longer say to the controllers of its cluster, said in its place.

Kafka learns of a death by silence, after a timeout. Whoever knows that a process is gone need not wait: a broker leaves
with a heartbeat that asks to be fenced, a leader of the quorum with the end of its epoch. Both name the epoch of who
leaves, so a request that comes too late, when the node is back, is refused and harms nothing.

Three small requests over a connection each; a controller that does not answer is asked again by the caller.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

from headrace.cluster.spec import Node

_END_QUORUM_EPOCH, _BROKER_HEARTBEAT, _UNREGISTER_BROKER = 54, 63, 64
_OK, _STALE_BROKER_EPOCH, _NOT_REGISTERED = 0, 77, 102
_ANSWER_WITHIN_S = 2.0
_CLIENT = b"headrace-watcher"


def report_silent(cluster_id: str, node: Node, epoch: int | None, voters: Sequence[Node]) -> bool:
    """True once the cluster knows: another node leads the quorum, and the broker of this epoch is fenced."""
    others = [voter for voter in voters if voter.node_id != node.node_id]
    if not others:
        return True  # no controller is left that could be told
    # The first successor last: it calls its election while the others still hold back.
    for voter in reversed(others):
        with suppress(OSError):
            leader, leader_epoch = _leader(voter, cluster_id)
            if leader == node.node_id:
                _end_epoch(voter, cluster_id, leader, leader_epoch, [other.node_id for other in others])
    active = _active(cluster_id, others)
    if active is None:
        return False
    return not node.broker or epoch is None or _fence(active, node.node_id, epoch) is not None


def release_registration(cluster_id: str, node: Node, epoch: int, voters: Iterable[Node]) -> bool:
    """True once the broker's new process may register although the session of its old one has not expired.

    The fencing is what makes this safe: it succeeds only while the old registration stands, and it renews the old
    session, so that no new process can have registered when the old registration is removed.
    """
    active = _active(cluster_id, voters)
    if active is None:
        return False
    fenced = _fence(active, node.node_id, epoch)
    return fenced is False or (fenced is True and _unregister(active, node.node_id))


def _active(cluster_id: str, voters: Iterable[Node]) -> Node | None:
    """The voter that leads the quorum, if one of these knows it and it is among them."""
    by_id = {voter.node_id: voter for voter in voters}
    newest, active = -1, None
    for voter in by_id.values():
        with suppress(OSError):
            leader, epoch = _leader(voter, cluster_id)
            if epoch > newest:
                newest, active = epoch, by_id.get(leader)
    return active


def _leader(voter: Node, cluster_id: str) -> tuple[int, int]:
    """Who leads the quorum, and in which epoch: the answer to an end of epoch 0, which is long over."""
    return _end_epoch(voter, cluster_id, voter.node_id, 0, [])


def _end_epoch(voter: Node, cluster_id: str, leader: int, epoch: int, successors: Sequence[int]) -> tuple[int, int]:
    """The voter takes the epoch for ended and the first successor calls an election at once."""
    topic = _text("__cluster_metadata")
    body = _text(cluster_id) + struct.pack(">i", 1) + topic
    body += struct.pack(f">iiiii{len(successors)}i", 1, 0, leader, epoch, len(successors), *successors)
    answer = _ask(voter, _END_QUORUM_EPOCH, body, flexible=False)
    at = 2 + 4 + len(topic) + 4 + 4 + 2
    if len(answer) < at + 8:
        raise ConnectionError("the controller has not answered for the metadata partition")
    leader, epoch = struct.unpack_from(">ii", answer, at)
    return leader, epoch


def _fence(active: Node, broker: int, epoch: int) -> bool | None:
    """True: it is fenced. False: the broker of that epoch is not registered any more. None: no answer, ask again."""
    with suppress(OSError, struct.error):
        answer = _ask(active, _BROKER_HEARTBEAT, struct.pack(">iqq??", broker, epoch, 0, True, False) + b"\0")
        _, code = struct.unpack_from(">ih", answer)
        return {_OK: True, _STALE_BROKER_EPOCH: False}.get(code)
    return None


def _unregister(active: Node, broker: int) -> bool:
    with suppress(OSError, struct.error):
        answer = _ask(active, _UNREGISTER_BROKER, struct.pack(">i", broker) + b"\0")
        _, code = struct.unpack_from(">ih", answer)
        return code in {_OK, _NOT_REGISTERED}
    return False


def _ask(voter: Node, key: int, body: bytes, *, flexible: bool = True) -> bytes:
    """The body of the answer to version 0 of a request."""
    tags = b"\0" if flexible else b""
    request = struct.pack(">hhih", key, 0, 1, len(_CLIENT)) + _CLIENT + tags + body
    with socket.create_connection(("127.0.0.1", voter.controller_port), _ANSWER_WITHIN_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _received(connection, 4))
        return _received(connection, size)[4 + len(tags) :]


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the controller has closed the connection")
        data += part
    return data


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
