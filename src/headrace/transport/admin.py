"""Look at and change a Kafka: brokers, quorum, settings, and all that `TopicAdmin` knows of topics.

Answers are frozen dataclasses; what a broker refuses is raised as a headrace error with the broker's own words.
Groups have a class of their own: `groups.Groups`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import Unreachable
from headrace.transport.admin_clients import PROBE_TOPIC, kafka_python, kafka_python_client, refusal
from headrace.transport.topic_admin import TopicAdmin
from headrace.transport.topics import (
    Cleaned,
    ConfigValue,
    NewTopic,
    Partition,
    PartitionDescription,
    PartitionSize,
    Topic,
    TopicDescription,
    TopicPartition,
    TopicSize,
)  # fmt: skip


@dataclass(frozen=True)
class BrokerView:
    """A broker as the cluster sees it."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool = False


@dataclass(frozen=True)
class Voter:
    """A replica of the metadata log: how far it has got, and how far behind the leader that is."""

    node_id: int
    log_end_offset: int
    lag: int
    voter: bool


@dataclass(frozen=True)
class Quorum:
    """The controllers: who leads, in which epoch, and who follows how closely."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[Voter, ...]


class Admin(TopicAdmin):
    """Questions to a Kafka, and changes of it.

    As a context manager it closes its connections at the end:

        with Admin("127.0.0.1:9092") as admin:
            print([topic.name for topic in admin.topics()])
    """

    def brokers(self) -> tuple[BrokerView, ...]:
        """The brokers that the cluster knows, fenced ones too."""
        answer = self.ask_other(lambda client: client.describe_cluster())
        return tuple(
            sorted(
                (
                    BrokerView(b["broker_id"], b["host"], b["port"], b["rack"], bool(b.get("is_fenced")))
                    for b in answer["brokers"]
                ),
                key=lambda broker: broker.broker_id,
            )
        )

    def cluster_id(self) -> str | None:
        """The id that the cluster was formatted with."""
        found: str | None = self._metadata().cluster_id
        return found

    def quorum(self) -> Quorum:
        """The state of the metadata quorum."""
        answer = self.ask_other(lambda client: client.describe_metadata_quorum())
        state = answer["topics"][0]["partitions"][0]
        if state["error"]:  # during an election it names no leader, but a number nevertheless
            raise Unreachable("the controllers have no leader at the moment", why=state["error"], hint="try again")
        ends = {v["replica_id"]: v["log_end_offset"] for v in state["current_voters"]}
        end = max(ends.values(), default=0)
        followers = [(v, True) for v in state["current_voters"]] + [(o, False) for o in state["observers"]]
        return Quorum(
            state["leader_id"],
            state["leader_epoch"],
            state["high_watermark"],
            tuple(
                Voter(v["replica_id"], v["log_end_offset"], max(0, end - v["log_end_offset"]), voter)
                for v, voter in followers
            ),
        )

    def broker_configs(self, broker_id: int) -> dict[str, ConfigValue]:
        """What holds on that broker, read from the broker itself."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        return self._configs(ConfigResource(ResourceType.BROKER, str(broker_id)), f"broker {broker_id}")


__all__ = [
    "PROBE_TOPIC", "Admin", "BrokerView", "Cleaned", "ConfigValue", "NewTopic", "Partition", "PartitionDescription",
    "PartitionSize", "Quorum", "Topic", "TopicDescription", "TopicPartition", "TopicSize", "Voter", "kafka_python",
    "kafka_python_client", "refusal",
]  # fmt: skip
