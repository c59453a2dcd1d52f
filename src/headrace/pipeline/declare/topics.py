"""The topics of a pipeline: those that it reads must exist, those that it writes to are created.

`[topics.NAME]` of headrace.toml says what a topic is to be like where it does not exist: the pipeline makes its own
topics so, and of a missing source names the command that would.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.config import TopicConfig, load
from headrace.errors import UsageError
from headrace.kafka import Kafka, NewTopic
from headrace.pipeline.declare.declaration import DeadLetters, Declaration

if TYPE_CHECKING:
    from headrace.kafka import Connection

_ANSWER_WITHIN_S = 5.0
_REPLICATION = 3
# A dead letter is as large as its original, and carries more headers.
_LETTERS = {"max.message.bytes": str(32 << 20)}


def require(connection: Connection, declaration: Declaration) -> None:
    """Kafka answers and has the topics that are read."""
    read = declaration.read_topics
    with Kafka(connection, timeout_s=_ANSWER_WITHIN_S) as admin:
        try:
            admin.require_topics(read)
        except UsageError as error:
            there = {topic.name for topic in admin.topics()}
            error.hint = next(_command(declaration, name) for name in read if name not in there)
            raise


def make(connection: Connection, declaration: Declaration, dead_letters: DeadLetters) -> None:
    """The topics that are written to exist: as they are declared, else as wide as the widest source."""
    wanted = {sink.target: dict[str, str]() for sink in declaration.sinks if sink.type.is_topic}
    if dead_letters.kind == "topic":
        wanted[dead_letters.target] = _LETTERS
    if not wanted:
        return
    declared = _declared(declaration)
    with Kafka(connection) as admin:
        partitions = max(len(topic.partitions) for topic in admin.require_topics(declaration.all_topics))
        replication = min(_REPLICATION, len(admin.brokers()))
        for name, configs in wanted.items():
            given = declared.get(name, TopicConfig(name))
            admin.ensure_topic(
                NewTopic(
                    name, given.partitions or partitions, given.replication or replication, {**configs, **given.kafka}
                )
            )


def _declared(declaration: Declaration) -> Mapping[str, TopicConfig]:
    return load(declaration.file).topics if declaration.file else {}


def _command(declaration: Declaration, name: str) -> str:
    """What makes the topic as it is declared."""
    given = _declared(declaration).get(name, TopicConfig(name))
    words = ["headrace", "topic", "create", name]
    for option, count in (("--partitions", given.partitions), ("--replication", given.replication)):
        words += [option, str(count)] if count else []
    for key, value in given.kafka.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)
