"""The first records: a topic, a producer, a consumer.

Lines that are typed (or piped in) become records of a topic, one record a line. A consumer that begins at the beginning
reads all of them, also long after they were written, and says how many it has processed: Kafka keeps records for as
long as the topic's retention says, whether somebody has read them or not.

Kafka's own console consumer reads the topic too, to show that it is the same Kafka, whatever the client.
"""

from __future__ import annotations

from headrace import consume, produce
from headrace.labs.kafka_tools import CONSOLE_CONSUMER, kafka_tool
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench, quoted

_LINES = ("This is the first event", "This is the second event", "This is the third event")


def run(lab: Workbench) -> None:
    lab.step("A topic", "Its name is all that is needed; partitions and replicas have defaults.")
    topic = lab.topic("quickstart-events", partitions=lab.p.partitions, replication=1)
    found = lab.admin.describe(topic)
    lab.shows(f"headrace topic describe {topic}")
    lab.output(
        [f"topic {topic}, id {found.topic_id}, {len(found.partitions)} partition, replication {found.replication}"]
    )
    lab.check("the topic has an id", 22, len(found.topic_id or ""))
    lab.check("records in it", 0, found.records)

    lab.step("Lines become records")
    file = lab.files / "events.txt"
    file.write_text("".join(f"{line}\n" for line in _LINES), encoding="utf-8")
    lab.shows(f"printf '%s\\n' {quoted(*_LINES)} | headrace produce {topic} -")
    report = produce(lab.cluster, topic, file)
    lab.check("records acknowledged", len(_LINES), report.acknowledged)

    lab.step("They are read from the beginning", "The consumer has no group, so nothing is remembered of it.")
    lab.shows(f"headrace consume {topic} --from beginning")
    read = [(record.value or b"").decode() for record in consume(lab.cluster, topic, start="beginning")]
    lab.output([*read, f"processed a total of {len(read)} records"])
    lab.check("records processed", len(_LINES), len(read))
    lab.check("in the order in which they were written", list(_LINES), read)

    lab.step("Kafka's own console consumer reads them too", "Reading takes nothing away, whoever reads.")
    words = ("--topic", topic, "--from-beginning", "--max-messages", len(_LINES), "--timeout-ms", 20_000)
    lab.shows(quoted("kafka-console-consumer.sh", "--bootstrap-server", "…", *words))
    out = kafka_tool(lab.cluster, CONSOLE_CONSUMER, "--bootstrap-server", lab.cluster.bootstrap, *words)
    lab.output(out)
    lab.check("what Kafka's tool has read", list(_LINES), out.splitlines())


LAB = Lab(
    "S1",
    ("S1.2",),
    run,
    parameters=(Parameter("partitions", 1, "partitions of the topic"),),
)
