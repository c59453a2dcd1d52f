"""The first records: a topic, a producer, a consumer.

Lines that are typed (or piped in) become records of a topic, one record a line. A consumer that begins at the beginning
reads all of them, also long after they were written, and says how many it has processed: Kafka keeps records for as
long as the topic's retention says, whether they were read or not.

Kafka's own console consumer reads the topic too, to show that it is the same Kafka, whatever the client.
"""

from __future__ import annotations

from headrace.labs.expect import contains
from headrace.labs.lab import Lab
from headrace.labs.workbench import Workbench, quoted

_LINES = ("This is the first event", "This is the second event", "This is the third event")


def run(lab: Workbench) -> None:
    lab.step("A topic", "Its name is all that is needed; partitions and replicas have defaults.")
    topic = lab.topic("quickstart-events", partitions=1, replication=1)
    found = lab.describe(topic)
    output = lab.types(f"headrace topic describe {topic}")
    lab.check("the topic has an id", 22, len(found.topic_id or ""))
    lab.check("it is shown", contains(found.topic_id), output.out)
    lab.check("records in it", 0, found.offsets)

    lab.step("Lines become records")
    output = lab.types(f"printf '%s\\n' {quoted(*_LINES)} | headrace produce {topic} -")
    lab.check("records acknowledged", contains(f"{len(_LINES)} records acknowledged"), output.err)

    lab.step("They are read from the beginning", "The consumer has no group, so nothing is remembered of it.")
    output = lab.types(f"headrace consume {topic} --from beginning")
    read = output.out.splitlines()
    lab.check("records processed", len(_LINES), len(read))
    lab.check("it says so", contains(f"{len(_LINES)} records"), output.err)
    lab.check("in the order in which they were written", list(_LINES), read)

    lab.step("Kafka's own console consumer reads them too", "Reading removes nothing.")
    words = ("--topic", topic, "--group", lab.group("lab-quickstart"), "--from-beginning", "--max-messages",
             len(_LINES), "--timeout-ms", 20_000)  # fmt: skip
    output = lab.types(quoted("headrace", "lab", "tool", "kafka-console-consumer", *words))
    lab.check("what Kafka's tool has read", list(_LINES), output.out.splitlines())


LAB = Lab("S1", ("S1.2",), run)
