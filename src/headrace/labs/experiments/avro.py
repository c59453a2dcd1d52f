"""Avro and a schema registry: what fits is written, what does not is refused.

Taxi rides are written with a schema that a registry keeps: the record carries five bytes that name it. A ride that does
not fit its schema is not written. Then the schema changes. A change that would break readers of the old records,
payment_type from int to string, is refused by the registry with HTTP 409 and the reason; a new field with a default is
accepted. From then on the topic holds records of two versions, and both old and new readers can read all of them.
"""

from __future__ import annotations

import http.client
import json
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from headrace import CodecError, ConsumeOptions, Decoded, Registry, Schema, SchemaCodec, consume, samples
from headrace.labs.expect import contains
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench, quoted

TOPIC = "datatalkclub.yellow_taxi_rides"
_FIELDS = ("vendorId", "passenger_count", "trip_distance", "payment_type", "total_amount")


def run(lab: Workbench) -> None:
    topic = lab.topic(TOPIC, partitions=2, fixed=True)
    for part in ("key", "value"):
        own_subject(lab, f"{topic}-{part}")
    with Registry(lab.cluster.registry) as registry:
        _first_version(lab, registry, topic)
        _what_does_not_fit(lab, topic)
        _refused(lab, registry, topic)
        _accepted(lab, registry, topic)


def _first_version(lab: Workbench, registry: Registry, topic: str) -> None:
    lab.step("Rides with a key and a value", "The key is {vendorId}; both have a schema in the registry.")
    lab.lay_out()
    lab.types("cat ride.avsc", most=14)
    file = lab.sample("taxi", lab.p.rides, "rides.ndjson", "--shape", "v1", "--format", "ndjson")
    sent = lab.produce(topic, "rides.ndjson", "--value avro:ride.avsc --key-codec avro:ride_key.avsc")
    rides = [json.loads(line) for line in file.read_bytes().splitlines()]
    lab.check("records acknowledged", lab.p.rides, sent)
    lab.types("headrace schema list")
    lab.check("subjects", {f"{topic}-key", f"{topic}-value"}, {s for s in registry.subjects() if s.startswith(topic)})

    output = lab.types(f"headrace consume {topic} --value registry --key-codec registry --json", most=3)
    lab.check("lines that it printed", lab.p.rides, len(output.out.splitlines()))
    found = list(consume(lab.cluster, topic, options=_reading(registry, topic)))
    pairs = [(_value(r.decoded_key), _value(r.decoded)) for r in found]
    lab.check("records read", lab.p.rides, len(found))
    lab.check("fields of a value", list(_FIELDS), list(pairs[0][1]))
    lab.check("the key is the vendor's", True, all(key == {"vendorId": value["vendorId"]} for key, value in pairs))
    lab.check("rides by vendor", dict(sorted(Counter(r["vendorId"] for r in rides).items())),
              dict(sorted(Counter(value["vendorId"] for _, value in pairs).items())))  # fmt: skip
    lab.check("bytes in front of the Avro data: a zero and the schema's id", [0, registry.version(f"{topic}-value").id],
              [(found[0].value or b"x")[0], int.from_bytes((found[0].value or b"")[1:5], "big")])  # fmt: skip


def _what_does_not_fit(lab: Workbench, topic: str) -> None:
    lab.step(
        "Rides that do not fit",
        "A word for a number, a missing field, a number too large: each is an error of its own.",
    )
    good: dict[str, object] = next(iter(samples.taxi(1, lab.seed, shape="v1")))
    lacking = {name: value for name, value in good.items() if name != "total_amount"}
    rides = [{**good, "payment_type": "cash"}, lacking, {**good, "passenger_count": 2**40}, good]
    lab.types(f"printf '%s\\n' {quoted(*map(json.dumps, rides))} > odd.ndjson")
    codecs = "--value avro:ride.avsc --key-codec avro:ride_key.avsc"
    lab.check("written", 1, lab.produce(topic, "odd.ndjson", f"{codecs} --on-bad set-aside"))
    aside = [json.loads(line) for line in lab.types("cat odd.ndjson.bad.ndjson").out.splitlines()]
    lab.check("set aside with the reason", 3, len(aside))
    lab.check("the first reason names the field", contains("payment_type"), aside[0]["reason"])


def _refused(lab: Workbench, registry: Registry, topic: str) -> None:
    lab.step("payment_type becomes a string", "Whoever reads with the new schema could not read the old records.")
    subject = f"{topic}-value"
    status, words = _post(registry, f"/subjects/{subject}/versions", {"schema": with_words()})
    lab.check("the registry's answer", 409, status)
    lab.say(f"In its own words: {words}")
    refusal = lab.types(f"headrace schema register {subject} ride_string.avsc", code=1).err
    lab.check("the reason names the field", contains("payment_type"), refusal)
    lab.check("and both types", True, "int" in refusal and "string" in refusal)
    lab.check("versions of the subject", [1], registry.versions(subject))


def _accepted(lab: Workbench, registry: Registry, topic: str) -> None:
    lab.step("A new field with a default", "tip_amount is 0 in records that have none.")
    subject = f"{topic}-value"
    lab.types(f"headrace schema check {subject} ride_v2.avsc")
    lab.types(f"headrace schema register {subject} ride_v2.avsc")
    lab.sample("taxi", lab.p.rides, "newer.ndjson", "--shape", "v2", "--format", "ndjson")
    lab.produce(topic, "newer.ndjson", "--value avro:ride_v2.avsc --key-codec avro:ride_key.avsc")
    lab.check("versions of the subject", [1, 2], registry.versions(subject))

    total = 2 * lab.p.rides + 1
    rows = []
    for version, fields in ((1, 5), (2, 6)):
        reader = SchemaCodec(registry, reader=Schema(samples.ride_schema(version)), subject=subject)
        read = list(consume(lab.cluster, topic, options=ConsumeOptions(value_codec=reader)))
        values = [_value(record.decoded) for record in read]
        errors = sum(isinstance(record.decoded, CodecError) for record in read)
        rows.append((f"version {version}", len(read), errors, len(values[0])))
        lab.check(f"reader of version {version}: records read", total, len(values) - errors)
        lab.check(f"reader of version {version}: fields of every record", {fields}, {len(value) for value in values})
        if version == 2:
            old = [_value(r.decoded) for r in read if r.decoded and not isinstance(r.decoded, CodecError)
                   and r.decoded.schema_version == 1]  # fmt: skip
            lab.check("old records have the default tip", {0.0}, {value["tip_amount"] for value in old})
    lab.table("one topic, two versions, two readers", ["reader", "records", "errors", "fields"], rows)


def with_words() -> str:
    """The schema with payment_type as a word: incompatible on purpose."""
    document = json.loads(samples.ride_schema(1))
    for field in document["fields"]:
        if field["name"] == "payment_type":
            field.update(type="string", doc="card, cash, no charge or dispute")
    return json.dumps(document, indent=2)


def _reading(registry: Registry, topic: str) -> ConsumeOptions:
    return ConsumeOptions(
        value_codec=SchemaCodec(registry, subject=f"{topic}-value"),
        key_codec=SchemaCodec(registry, subject=f"{topic}-key"),
    )


def _value(decoded: Decoded | CodecError | None) -> Any:
    return decoded.value if isinstance(decoded, Decoded) else {}


def _post(registry: Registry, path: str, body: dict[str, object]) -> tuple[int, str]:
    """The registry's own words, without any client between."""
    parts = urlsplit(registry.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def own_subject(lab: Workbench, subject: str) -> None:
    """There is no such subject, and at the end of the lab it is gone again."""
    _drop(lab, subject)
    lab.finally_(_drop, lab, subject)


def _drop(lab: Workbench, subject: str) -> None:
    # A connection of its own: at the end of the lab the others are closed.
    with Registry(lab.cluster.registry) as registry:
        if subject in registry.subjects(deleted=True):
            registry.delete(subject, hard=True)


LAB = Lab(
    "S3",
    ("S3.6", "S3.7"),
    run,
    needs=Needs(services=("registry",), topics=(TOPIC,)),
    parameters=(Parameter("rides", 1000, "rides of each version", fast=200, least=20, most=100_000),),
    files={
        "ride.avsc": lambda: samples.ride_schema(1),
        "ride_key.avsc": samples.ride_key_schema,
        "ride_string.avsc": with_words,
        "ride_v2.avsc": lambda: samples.ride_schema(2),
    },
)
