"""What a node that died can no longer say to the controllers of its cluster, said in its place.

Kafka learns of a death by silence, after a timeout. Whoever knows that a process is gone need not wait: a broker leaves
with a heartbeat that asks to be fenced, a leader of the quorum with the end of its epoch. Both name the epoch of who
leaves, so a request that comes too late, when the node is back, is refused and harms nothing.

Three small requests over a connection each; a controller that does not answer is asked again by the caller.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.cluster.spec import Node

_END_QUORUM_EPOCH, _BROKER_HEARTBEAT, _UNREGISTER_BROKER = 54, 63, 64
_OK, _STALE_BROKER_EPOCH, _NOT_REGISTERED = 0, 77, 102
_CLIENT = b"headrace-watcher"
# An election has failed by then, and its voters wait for the old leader again.
_TELL_AGAIN_S = 1.5

#: When each voter (by its id) was last asked to end which epoch of the quorum.
Asked = dict[tuple[int, int], float]


@dataclass(frozen=True)
class Controllers:
    """The controllers of a cluster that can be asked, and how long one of them may take to answer."""

    cluster_id: str
    nodes: Sequence[Node]
    within_s: float = 2.0

    def report_silent(self, node: Node, epoch: int | None, asked: Asked) -> bool | None:
        """True: another node leads the quorum, and the broker of this epoch is fenced.

        False: there is nobody or nothing to tell: no controller is left, or no broker of this epoch is registered.
        None: they do not know it yet, ask again. `asked` is what earlier attempts did.
        """
        others = [voter for voter in self.nodes if voter.node_id != node.node_id]
        if not others:
            return False
        self._end_epoch_of(node, others, asked)
        active = self._active(others)
        if active is None:
            return None
        if not node.broker:
            return True
        return False if epoch is None else self._fence(active, node.node_id, epoch)

    def release_registration(self, node: Node, epoch: int) -> bool:
        """True once the broker's new process may register although the session of its old one has not expired.

        The fencing is what makes this safe: it succeeds only while the old registration stands, and it renews the old
        session, so that no new process can have registered when the old registration is removed.
        """
        active = self._active(self.nodes)
        if active is None:
            return False
        fenced = self._fence(active, node.node_id, epoch)
        return fenced is False or (fenced is True and self._unregister(active, node.node_id))

    def _end_epoch_of(self, node: Node, others: Sequence[Node], asked: Asked) -> None:
        """One voter that follows the node, and was not asked lately, asks the others for their votes at once.

        It asks in vain: a voter grants none while it takes the leader for alive. But from then on it would grant its
        own, so the next one that is asked wins. One at each try, because two that ask at the same moment split the
        votes. To be asked twice would only make a voter start over.
        """
        for voter in others:
            with suppress(OSError):
                leader, epoch = self._leader(voter)
                said = asked.get((voter.node_id, epoch))
                if leader == node.node_id and (said is None or time.monotonic() - said > _TELL_AGAIN_S):
                    asked[voter.node_id, epoch] = time.monotonic()
                    self._end_epoch(voter, leader, epoch, [voter.node_id])
                    return

    def _active(self, voters: Sequence[Node]) -> Node | None:
        """The voter that leads the quorum, if one of these knows it and it is among them."""
        by_id = {voter.node_id: voter for voter in voters}
        newest, active = (-1, False), None
        for voter in voters:
            with suppress(OSError):
                leader, epoch = self._leader(voter)
                # In one and the same epoch some know the leader already, others not yet.
                if (epoch, leader >= 0) > newest:
                    newest, active = (epoch, leader >= 0), by_id.get(leader)
        return active

    def _leader(self, voter: Node) -> tuple[int, int]:
        """Who leads the quorum, and in which epoch: the answer to an end of epoch 0, which is long over."""
        return self._end_epoch(voter, voter.node_id, 0, [])

    def _end_epoch(self, voter: Node, leader: int, epoch: int, successors: Sequence[int]) -> tuple[int, int]:
        """The voter takes the epoch for ended, and calls an election at once if it is the first successor."""
        topic = _text("__cluster_metadata")
        body = _text(self.cluster_id) + struct.pack(">i", 1) + topic
        body += struct.pack(f">iiiii{len(successors)}i", 1, 0, leader, epoch, len(successors), *successors)
        answer = self._ask(voter, _END_QUORUM_EPOCH, body, flexible=False)
        at = 2 + 4 + len(topic) + 4 + 4 + 2
        if len(answer) < at + 8:
            raise ConnectionError("the controller has not answered for the metadata partition")
        leader, epoch = struct.unpack_from(">ii", answer, at)
        return leader, epoch

    def _fence(self, active: Node, broker: int, epoch: int) -> bool | None:
        """True: it is fenced. False: no broker of that epoch is registered any more. None: no answer, ask again."""
        with suppress(OSError, struct.error):
            answer = self._ask(active, _BROKER_HEARTBEAT, struct.pack(">iqq??", broker, epoch, 0, True, False) + b"\0")
            _, code = struct.unpack_from(">ih", answer)
            return {_OK: True, _STALE_BROKER_EPOCH: False}.get(code)
        return None

    def _unregister(self, active: Node, broker: int) -> bool:
        with suppress(OSError, struct.error):
            answer = self._ask(active, _UNREGISTER_BROKER, struct.pack(">i", broker) + b"\0")
            _, code = struct.unpack_from(">ih", answer)
            return code in {_OK, _NOT_REGISTERED}
        return False

    def _ask(self, voter: Node, key: int, body: bytes, *, flexible: bool = True) -> bytes:
        """The body of the answer to version 0 of a request."""
        tags = b"\0" if flexible else b""
        request = struct.pack(">hhih", key, 0, 1, len(_CLIENT)) + _CLIENT + tags + body
        with socket.create_connection(("127.0.0.1", voter.controller_port), self.within_s) as connection:
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
