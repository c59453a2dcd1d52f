"""An incompatible change, by two topics side by side.

A change that breaks readers cannot go into the topic that they read. So the new schema gets a topic of its own, and for
a while both are filled with the same rides, each with its schema: that is the upgrade window. The consumers move one by
one, each when it is ready, and lose nothing; when the last one has moved, the old topic is no longer written to, and
removed.
"""

from __future__ import annotations

from headrace import ConsumeOptions, Decoded, Registry, SchemaCodec, consume, samples
from headrace.labs.expect import contains
from headrace.labs.experiments.avro import own_subject, with_words
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench, quoted

_OLD, _NEW = "rides.v1", "rides.v2"
_CONSUMERS = ("billing", "reporting", "fraud")
_WORDS = {1: "card", 2: "cash", 3: "no charge", 4: "dispute"}


def run(lab: Workbench) -> None:
    lab.topic(_OLD, partitions=2, fixed=True)
    lab.topic(_NEW, partitions=2, fixed=True)
    groups = {name: lab.group(f"lab-upgrade-{name}") for name in _CONSUMERS}
    for subject in (f"{topic}-{part}" for topic in (_OLD, _NEW) for part in ("key", "value")):
        own_subject(lab, subject)
    with Registry(lab.cluster.registry) as registry:
        _window(lab, registry, groups)


def _window(lab: Workbench, registry: Registry, groups: dict[str, str]) -> None:
    lab.step("Before", "One topic, one schema, three consumers that read it as groups of their own.")
    lab.lay_out()
    _fill(lab, 0, [_OLD])
    seen: dict[str, list[int]] = {name: [] for name in _CONSUMERS}
    for name in _CONSUMERS:
        seen[name] += _read(lab, registry, _OLD, groups[name])
    lab.check("rides that each has read", {lab.p.rides}, {len(numbers) for numbers in seen.values()})

    lab.step("The change is refused in the old topic", "payment_type becomes a word.")
    output = lab.types(f"headrace schema register {_OLD}-value ride_words.avsc", code=1)
    lab.check("incompatible", contains("payment_type"), output.err)

    lab.step(
        "The window opens", "From now on every ride goes into both topics, each time with the schema of the topic."
    )
    moved: dict[str, int] = {}
    first_new = lab.p.rides
    for at in range(len(_CONSUMERS)):
        _fill(lab, at + 1, [_OLD, _NEW])
        for name in _CONSUMERS:
            topic = _NEW if name in moved else _OLD
            seen[name] += _read(lab, registry, topic, groups[name])
        name = _CONSUMERS[at]
        # It has read the old topic to its end; of the new one it skips the rides that it knows already.
        moved[name] = len(seen[name])
        lab.shows(f"headrace consume {_NEW} --group {groups[name]} --value registry")
        known = _read(lab, registry, _NEW, groups[name])
        again = [number for number in known if number in set(seen[name])]
        lab.check(f"{name} moves: rides of the new topic that it knew already", len(seen[name]) - first_new, len(again))
        seen[name] += [number for number in known if number not in set(seen[name])]
    lab.table("who moved when", ["consumer", "after so many rides"], moved.items())

    lab.step("The window closes", "The last consumer has moved: the old topic gets nothing more.")
    _fill(lab, len(_CONSUMERS) + 1, [_NEW])
    for name in _CONSUMERS:
        seen[name] += _read(lab, registry, _NEW, groups[name])
    total = lab.p.rides * (len(_CONSUMERS) + 2)
    for name in _CONSUMERS:
        lab.check(f"{name}: rides read", total, len(set(seen[name])))
        lab.check(f"{name}: rides read twice", 0, len(seen[name]) - len(set(seen[name])))
    ends = {topic: lab.describe(topic).offsets for topic in (_OLD, _NEW)}
    lab.table("rides in the topics", ["topic", "rides"], ends.items())
    lab.check("rides in the old topic", lab.p.rides * (len(_CONSUMERS) + 1), ends[_OLD])
    lab.check("rides in the new one", lab.p.rides * (len(_CONSUMERS) + 1), ends[_NEW])
    lab.shows(f"headrace topic delete {_OLD} --yes")
    lab.kafka.delete_topics([_OLD])
    lab.check("topics that are left", [_NEW], [t.name for t in lab.kafka.topics() if t.name in (_OLD, _NEW)])


def _ride_file(lab: Workbench, at: int) -> None:
    """Rides of a round, each with its own number as the amount, so that it can be followed through both topics."""
    numbered = f"{at * lab.p.rides} + NR - 1"
    made = quoted("headrace", "sample", "taxi", "--shape", "v1", "--records", lab.p.rides, "--seed", lab.seed + at,
                  "--format", "ndjson")  # fmt: skip
    lab.types(f"""{made} | awk '{{sub(/"total_amount": [^}}]*/, "\\"total_amount\\": " ({numbered})); print}}' """
              "> rides.ndjson")  # fmt: skip
    words = "; ".join(f's/"payment_type": {number},/"payment_type": "{word}",/' for number, word in _WORDS.items())
    lab.types(f"sed '{words}' rides.ndjson > rides_words.ndjson")


def _fill(lab: Workbench, at: int, topics: list[str]) -> None:
    _ride_file(lab, at)
    for topic in topics:
        old = topic == _OLD
        file, schema = ("rides.ndjson", "ride.avsc") if old else ("rides_words.ndjson", "ride_words.avsc")
        written = lab.produce(topic, file, f"--value avro:{schema} --key-codec avro:ride_key.avsc")
        lab.check(f"{topic}: rides written", lab.p.rides, written)


def _read(lab: Workbench, registry: Registry, topic: str, group: str) -> list[int]:
    """The numbers of the rides that the group had not read yet; each payment type is what the topic's schema says."""
    codec = SchemaCodec(registry, subject=f"{topic}-value")
    kind = str if topic == _NEW else int
    numbers: list[int] = []
    for record in consume(lab.cluster, topic, options=ConsumeOptions(group=group, value_codec=codec)):
        value = record.decoded.value if isinstance(record.decoded, Decoded) else {}
        if isinstance(value.get("payment_type"), kind):
            numbers.append(int(value["total_amount"]))
    return numbers


LAB = Lab(
    "S3",
    ("S3.8",),
    run,
    needs=Needs(services=("registry",), topics=(_OLD, _NEW)),
    parameters=(Parameter("rides", 500, "rides of each round", fast=100, least=20, most=100_000),),
    files={
        "ride.avsc": lambda: samples.ride_schema(1),
        "ride_key.avsc": samples.ride_key_schema,
        "ride_words.avsc": with_words,
    },
)
