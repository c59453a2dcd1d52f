"""Schemas in a real registry, by the library and by the command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as TheirSchema
from confluent_kafka.schema_registry import SchemaRegistryClient

from headrace.cluster import Cluster
from headrace.errors import Incompatible, Unreachable, UsageError
from headrace.schemas.registry import Reference, Registry, Schema
from tests.conftest import Done
from tests.registry.conftest import RIDE, RIDE_WITH_TEXT, RIDE_WITH_TIP, avro

Shell = Callable[..., Done]
Write = Callable[[str, Any], Path]

VENDOR = {"type": "record", "name": "Vendor", "namespace": "taxi", "fields": [{"name": "id", "type": "int"}]}


def test_what_was_registered_is_there_for_us_and_for_the_client_of_confluent(
    registry: Registry, theirs: SchemaRegistryClient, subject: str
) -> None:
    number = registry.register(subject, avro(RIDE))
    assert registry.register(subject, avro(RIDE)) == number
    assert subject in registry.subjects()
    assert registry.versions(subject) == [1]
    assert registry.version(subject).id == number
    assert (subject, 1) in registry.versions_of(number)
    assert json.loads(theirs.get_schema(number).schema_str or "") == RIDE
    next_number = theirs.register_schema(subject, TheirSchema(json.dumps(RIDE_WITH_TIP), "AVRO"))
    assert registry.version(subject, 2).id == next_number
    found = registry.schema(next_number)
    assert found
    assert json.loads(found.text) == RIDE_WITH_TIP


def test_payment_type_as_text_is_refused_with_the_field_and_both_types(registry: Registry, subject: str) -> None:
    registry.register(subject, avro(RIDE))
    with pytest.raises(Incompatible) as refused:
        registry.register(subject, avro(RIDE_WITH_TEXT))
    assert "HTTP 409" in refused.value.problem
    assert "BACKWARD compatible with version 1" in refused.value.problem
    assert "field payment_type was int and would be string" in str(refused.value.why)
    assert "keep int in field payment_type" in str(refused.value.hint)
    assert registry.versions(subject) == [1]


def test_a_field_with_a_default_is_taken_and_one_without_is_not(registry: Registry, subject: str) -> None:
    registry.register(subject, avro(RIDE))
    without = {**RIDE, "fields": [*RIDE["fields"], {"name": "tip", "type": "float"}]}
    verdict = registry.check(subject, avro(without))
    assert not verdict.compatible
    assert verdict.breaks == ("field tip (float) is new and has no default, so old records cannot be read",)
    assert verdict.remedies == ('give field tip a default, as in "default": 0.0',)
    assert registry.check(subject, avro(RIDE_WITH_TIP)).compatible
    registry.register(subject, avro(RIDE_WITH_TIP))
    assert registry.versions(subject) == [1, 2]


def test_the_suggested_changes_pass(registry: Registry, subject: str) -> None:
    registry.register(subject, avro(RIDE))
    union = [{**f, "type": ["int", "string"]} if f["name"] == "payment_type" else f for f in RIDE["fields"]]
    beside = [*RIDE["fields"], {"name": "payment_name", "type": "string", "default": ""}]
    for fields in (union, beside):
        assert registry.check(subject, avro({**RIDE, "fields": fields})).compatible


@pytest.mark.parametrize(
    ("level", "change", "words"),
    [
        ("FORWARD", RIDE["fields"][:-1], "field total_amount (float) is gone"),
        ("FULL", [*RIDE["fields"], {"name": "tip", "type": "float"}], "field tip (float) is new and has no default"),
        ("FULL", RIDE_WITH_TEXT["fields"], "readers of the old schema cannot read string"),
    ],
)
def test_other_levels_are_explained_too(
    registry: Registry, subject: str, level: Any, change: list[Any], words: str
) -> None:
    registry.register(subject, avro(RIDE))
    registry.set_compatibility(level, subject)
    with pytest.raises(Incompatible, match=level) as refused:
        registry.register(subject, avro({**RIDE, "fields": change}))
    assert words in str(refused.value.why)


def test_a_transitive_level_looks_at_every_version(registry: Registry, subject: str) -> None:
    registry.set_compatibility("NONE", subject)
    registry.register(subject, avro(RIDE))
    registry.register(subject, avro(RIDE_WITH_TEXT))
    registry.set_compatibility("BACKWARD_TRANSITIVE", subject)
    verdict = registry.check(subject, avro({**RIDE_WITH_TEXT, "doc": "again"}))
    assert verdict.against == (1, 2)
    assert not verdict.compatible
    assert "payment_type" in verdict.breaks[0]


def test_json_schema_and_protobuf_are_refused_in_words(registry: Registry, subject: str) -> None:
    ride = {"type": "object", "properties": {"payment_type": {"type": "integer"}}}
    registry.register(f"{subject}-json", Schema(json.dumps(ride), "JSON"))
    text = {"type": "object", "properties": {"payment_type": {"type": "string"}}}
    with pytest.raises(Incompatible, match="field payment_type was integer and would be string"):
        registry.register(f"{subject}-json", Schema(json.dumps(text), "JSON"))
    proto = 'syntax = "proto3";\npackage taxi;\nmessage Ride { int32 payment_type = 1; }\n'
    registry.register(f"{subject}-proto", Schema(proto, "PROTOBUF"))
    said = r"(?s)field Ride.payment_type was int32 = 1 and would be string = 1.*before: int32 , after string"
    with pytest.raises(Incompatible, match=said):
        registry.register(f"{subject}-proto", Schema(proto.replace("int32", "string"), "PROTOBUF"))


def test_a_schema_refers_to_another(registry: Registry, subject: str) -> None:
    registry.register(f"{subject}-vendor", avro(VENDOR))
    ride = {"type": "record", "name": "R", "namespace": "taxi", "fields": [{"name": "v", "type": "taxi.Vendor"}]}
    reference = Reference("taxi.Vendor", f"{subject}-vendor", 1)
    number = registry.register(subject, Schema(json.dumps(ride), references=(reference,)))
    with Registry(registry.url) as another:
        known = another.schema(number)
        assert known
        assert known.references == (reference,)
        assert {name: json.loads(found.text) for name, found in another.referred(known).items()} == {
            "taxi.Vendor": VENDOR
        }
    with pytest.raises(UsageError, match="referencing"):
        registry.delete(f"{subject}-vendor", 1)


def test_soft_deleted_ids_stay_readable_and_hard_deleted_ones_do_not(cluster: Cluster, subject: str) -> None:
    unique = {**RIDE, "name": f"Ride{uuid.uuid4().hex}"}
    with Registry(cluster.registry) as registry:
        number = registry.register(subject, avro(unique))
        registry.register(subject, avro({**unique, "fields": RIDE_WITH_TIP["fields"]}))
        assert registry.delete(subject, 1) == [1]
        assert registry.versions(subject) == [2]
        assert registry.versions(subject, deleted=True) == [1, 2]
    with Registry(cluster.registry) as registry:
        assert registry.schema(number)
        assert registry.delete(subject, 1, hard=True) == [1]
    with Registry(cluster.registry) as registry:
        assert registry.schema(number) is None
        assert registry.delete(subject, hard=True) == [2]
        assert subject not in registry.subjects(deleted=True)


def test_fifty_registrations_at_once_of_ten_schemas_give_ten_ids(cluster: Cluster, subject: str) -> None:
    def register(turn: int) -> int:
        with Registry(cluster.registry) as registry:
            return registry.register(
                f"{subject}-{turn % 10}", avro({**RIDE, "name": f"Ride_{subject[8:]}_{turn % 10}"})
            )

    with ThreadPoolExecutor(50) as pool:
        numbers = list(pool.map(register, range(50)))
    assert len(set(numbers)) == 10
    assert all(numbers[turn] == numbers[turn % 10] for turn in range(50))
    with Registry(cluster.registry) as registry:
        assert all(registry.versions(f"{subject}-{turn}") == [1] for turn in range(10))


def test_a_killed_registry_leaves_the_cache_and_comes_back_with_the_same_ids(cluster: Cluster, subject: str) -> None:
    with Registry(cluster.registry, retry_for_s=0.5) as registry:
        number = registry.register(subject, avro(RIDE))
        registry.register(subject, avro(RIDE_WITH_TIP))
        before = [registry.version(subject, version) for version in registry.versions(subject)]
        cluster.kill("registry")
        try:
            assert registry.schema(number) == avro(RIDE)
            with pytest.raises(Unreachable, match=r"for 0\.5 s") as gone:
                registry.schema(999_999)
            assert "headrace start registry" in str(gone.value.hint)
        finally:
            cluster.start("registry")
        assert [registry.version(subject, version) for version in registry.versions(subject)] == before


# -- from the shell -------------------------------------------------------------------------------------------------


def test_the_life_of_a_subject_from_the_shell(shell: Shell, write: Write, subject: str) -> None:
    write("ride.avsc", RIDE), write("text.avsc", RIDE_WITH_TEXT), write("tip.avsc", RIDE_WITH_TIP)
    made = shell("schema", "register", subject, "ride.avsc")
    assert made.code == 0
    refused = shell("schema", "register", subject, "text.avsc")
    assert refused.code == 1
    assert "(HTTP 409)" in refused.err
    assert "payment_type was int and would be string" in refused.err
    checked = shell("schema", "check", subject, "text.avsc", "--json")
    assert (checked.code, checked.json()["compatible"]) == (1, False)
    assert shell("schema", "check", subject, "tip.avsc").code == 0
    assert shell("schema", "register", subject, "tip.avsc", "--json").json()["version"] == 2
    differs = shell("schema", "diff", subject)
    assert (differs.code, differs.err, differs.out) == (0, "", "tip: added, float, default 0.5\n")
    assert shell("schema", "versions", subject, "--json").json()[0]["id"] == int(made.out)
    listed = {row["subject"]: row for row in shell("schema", "list", "--json").json()}
    assert (listed[subject]["versions"], listed[subject]["compatibility"]) == (2, "BACKWARD")
    assert json.loads(shell("schema", "show", subject, "--version", 1).out) == RIDE
    assert json.loads(shell("schema", "show", "--id", made.out.strip()).out) == RIDE
    assert shell("schema", "compatibility", "set", "full", subject).out == "FULL\n"
    assert shell("schema", "compatibility", "get", subject).out == "FULL\n"
    assert shell("schema", "compatibility", "get").out == "BACKWARD\n"
    assert shell("schema", "delete", subject).code == 2
    assert shell("schema", "delete", subject, "--hard", "--yes").code == 0
    assert subject not in shell("schema", "list").out


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.avsc", '{"type": "record",\n "name": }', "line 2, column 10"),
        ("b.avsc", {**RIDE, "fields": [{"name": "a", "type": "itn"}]}, "at /fields/0/type"),
        ("c.avsc", {"type": "record", "name": "X"}, "type record needs fields"),
        ("d.json", {"type": "object", "properties": {"a": {"type": "objekt"}}}, "at /properties/a/type"),
        ("e.json", {"$ref": "#/definitions/a", "definitions": {"a": {"type": "object"}}}, "only a $ref"),
    ],
)
def test_an_invalid_schema_is_refused_with_its_position(
    shell: Shell, write: Write, subject: str, name: str, content: Any, words: str
) -> None:
    write(name, content)
    refused = shell("schema", "register", subject, name)
    assert refused.code == 2
    assert words in refused.err


def test_what_is_not_there_is_said_with_what_is(shell: Shell, write: Write, registry: Registry, subject: str) -> None:
    registry.register(subject, avro(RIDE))
    near = shell("schema", "show", subject[:-1])
    assert near.code == 2
    assert f"the nearest name is {subject}" in near.err
    assert "it has 1" in shell("schema", "show", subject, "--version", 7).err
    assert "has no schema with the id 999999" in shell("schema", "show", "--id", 999999).err
    away = shell("schema", "list", "--registry", "http://127.0.0.1:1")
    assert away.code == 4
    assert "headrace start registry" in away.err
    assert shell("schema", "register", subject, "nosuch.avsc").code == 2


def test_the_example_of_the_page_runs(cluster: Cluster, write: Callable[[str, Any], Path]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    folder = write("ride.avsc", RIDE).parent
    code = code.replace("Cluster()", f"Cluster({str(cluster.home.root)!r})")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'total_amount': 12.25" in done.stdout
