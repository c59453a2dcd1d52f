"""What the console does, said in three other ways: a `headrace` command, Kafka's own tools, and Python.

Every action and every page of records shows them, so that whoever has clicked once can type it the next time. Values
that people type are quoted for the shell and for Python; nothing here runs anything.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec


class Equal(msgspec.Struct, frozen=True, kw_only=True):
    """The same thing for a shell with headrace, for a shell with Kafka's tools, and for Python."""

    headrace: str
    kafka: str
    python: str


def _line(*words: object) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def _options(name: str, pairs: Mapping[str, str]) -> list[str]:
    return [word for key, value in pairs.items() for word in (name, f"{key}={value}")]


@dataclass(frozen=True)
class Commands:
    """The commands against one Kafka. `foreign` is one that no folder here belongs to."""

    bootstrap: str
    foreign: bool = False
    registry: str | None = None
    connect: str | None = None
    connect_token: Path | None = None

    # -- topics -------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int | None, replication: int | None, configs: Mapping[str, str]
    ) -> Equal:
        ours: list[object] = ["topic", "create", name]
        theirs: list[object] = ["--create", "--topic", name]
        python = [repr(name)]
        if partitions:
            ours += ["--partitions", partitions]
            theirs += ["--partitions", partitions]
            python.append(f"partitions={partitions}")
        if replication:
            ours += ["--replication", replication]
            theirs += ["--replication-factor", replication]
            python.append(f"replication={replication}")
        if configs:
            python.append(f"configs={dict(configs)!r}")
        return Equal(
            headrace=self._headrace(*ours, *_options("--set", configs)),
            kafka=self._tool("kafka-topics.sh", *theirs, *_options("--config", configs)),
            python=self._kafka(f"kafka.create_topics([NewTopic({', '.join(python)})])", new_topic=True),
        )

    def alter_topic(self, name: str, partitions: int | None, configs: Mapping[str, str | None]) -> Equal:
        given = {key: value for key, value in configs.items() if value is not None}
        unset = [key for key, value in configs.items() if value is None]
        ours: list[object] = ["topic", "alter", name]
        kafka = []
        arguments = [repr(name)]
        if partitions:
            ours += ["--partitions", partitions]
            kafka.append(self._tool("kafka-topics.sh", "--alter", "--topic", name, "--partitions", partitions))
            arguments.append(f"partitions={partitions}")
        if configs:
            words: list[object] = ["--alter", "--entity-type", "topics", "--entity-name", name]
            if given:
                words += ["--add-config", ",".join(f"{key}={_bracketed(value)}" for key, value in given.items())]
            if unset:
                words += ["--delete-config", ",".join(unset)]
            kafka.append(self._tool("kafka-configs.sh", *words))
            arguments.append(f"configs={dict(configs)!r}")
        ours += _options("--set", given)
        for key in unset:
            ours += ["--unset", key]
        return Equal(
            headrace=self._headrace(*ours),
            kafka="\n".join(kafka) or "# nothing to change",
            python=self._kafka(f"kafka.alter_topic({', '.join(arguments)})"),
        )

    def clean_topic(self, name: str, partitions: Iterable[int]) -> Equal:
        offsets = {
            "version": 1,
            "partitions": [{"topic": name, "partition": number, "offset": -1} for number in partitions],
        }
        file = f"<(echo {shlex.quote(json.dumps(offsets))})"
        tool = self._tool("kafka-delete-records.sh", "--offset-json-file")
        return Equal(
            headrace=self._headrace("topic", "clean", name, "--yes"),
            kafka=f"{tool} {file}",
            python=self._kafka(f"kafka.clean_topic({name!r})"),
        )

    def delete_topic(self, name: str) -> Equal:
        return Equal(
            headrace=self._headrace("topic", "delete", name, "--yes"),
            kafka=self._tool("kafka-topics.sh", "--delete", "--topic", name),
            python=self._kafka(f"kafka.delete_topics([{name!r}])"),
        )

    def elect_preferred(self) -> Equal:
        return Equal(
            headrace=self._headrace("topic", "elect"),
            kafka=self._tool("kafka-leader-election.sh", "--election-type", "preferred", "--all-topic-partitions"),
            python=self._kafka("kafka.elect_preferred()"),
        )

    # -- records ------------------------------------------------------------------------------------------------

    def consume(self, topic: str, start: str, limit: int, partition: int | None = None) -> Equal:
        ours: list[object] = ["consume", topic, "--isolation", "uncommitted"]
        theirs: list[object] = ["--topic", topic, "--max-messages", limit, "--isolation-level", "read_uncommitted"]
        options = ['isolation="uncommitted"', f'until=Until("count", {limit})']
        if start == "end":
            ours.append("--follow")
            options[-1] = 'until=Until("never")'
        else:
            ours += ["--from", start, "--until", f"count:{limit}"]
        options.append(f"start=Start.parse({start!r})")
        if partition is not None:
            ours += ["--partition", partition]
            theirs += ["--partition", partition]
            theirs += ["--offset", start if start.isdecimal() else {"beginning": "earliest"}.get(start, "latest")]
            options.append(f"partitions=[{partition}]")
        elif start == "beginning":
            theirs.append("--from-beginning")
        shown = [w for p in ("key", "headers", "timestamp", "partition", "offset")
                 for w in ("--formatter-property", f"print.{p}=true")]  # fmt: skip
        return Equal(
            headrace=self._headrace(*ours, "--json"),
            kafka=self._tool("kafka-console-consumer.sh", *theirs, *shown),
            python="from headrace import ConsumeOptions, Start, Until, consume\n\n"
            f"options = ConsumeOptions({', '.join(options)})\n"
            f"for record in consume({self.bootstrap!r}, {topic!r}, options=options):\n"
            "    print(record.partition, record.offset, record.key, record.value)",
        )

    def produce(
        self, topic: str, key: str | None, value: str | None, headers: Mapping[str, str], partition: int | None = None
    ) -> Equal:
        ours: list[object] = ["produce", topic, "--input", "lines"]
        theirs: list[object] = ["--topic", topic]
        arguments = []
        text = value if value is not None else "NULL"
        line = text
        if headers:
            theirs += ["--reader-property", "parse.headers=true"]
            line = ",".join(f"{name}:{given}" for name, given in headers.items()) + "\t" + line
        if key is not None:
            ours += ["--key", key]
            theirs += ["--reader-property", "parse.key=true"]
            line = (line.replace("\t", f"\t{key}\t", 1)) if headers else f"{key}\t{line}"
            arguments.append(f"key={key!r}")
        if value is None:
            ours += ["--null-value", "NULL"]
            theirs += ["--reader-property", "null.marker=NULL"]
        ours += _options("--header", headers)
        shaping = []
        if headers:
            shaping.append(f"headers={[(n, v.encode()) for n, v in headers.items()]!r}")
        if partition is not None:
            ours += ["--partition", partition]
            shaping.append(f"partition={partition}")
        names = "ProduceOptions, Shaping, produce" if shaping else "produce"
        if shaping:
            arguments.append(f"options=ProduceOptions(shaping=Shaping({', '.join(shaping)}))")
        records = "[None]" if value is None else f"[{value!r}]"
        more = "".join(f", {argument}" for argument in arguments)
        return Equal(
            headrace=f"printf '%s\\n' {shlex.quote(text)} | {self._headrace(*ours)}",
            kafka=f"printf '%s\\n' {shlex.quote(line)} | {self._tool('kafka-console-producer.sh', *theirs)}"
            + ("" if partition is None else f"   # it cannot choose partition {partition}"),
            python=f"from headrace import {names}\n\nproduce({self.bootstrap!r}, {topic!r}, {records}{more})",
        )

    # -- groups -------------------------------------------------------------------------------------------------

    def reset_group(self, group: str, to: str, topics: Sequence[str], *, execute: bool) -> Equal:
        ours: list[object] = ["group", "reset", group, "--to", to]
        theirs: list[object] = ["--group", group, "--reset-offsets"]
        for topic in topics:
            ours += ["--topic", topic]
            theirs += ["--topic", topic]
        if not topics:
            theirs.append("--all-topics")
        theirs += _reset_words(to)
        if execute:
            ours.append("--execute")
        theirs.append("--execute" if execute else "--dry-run")
        wanted = f", {[(topic, None) for topic in topics]!r}" if topics else ""
        lines = f"plan = kafka.groups.plan_reset({group!r}, ResetTo.parse({to!r}){wanted})"
        if execute:
            lines += f"\n    kafka.groups.reset({group!r}, plan)"
        return Equal(
            headrace=self._headrace(*ours),
            kafka=self._tool("kafka-consumer-groups.sh", *theirs),
            python=f"from headrace import Kafka, ResetTo\n\nwith Kafka({self.bootstrap!r}) as kafka:\n    {lines}",
        )

    def delete_group(self, group: str) -> Equal:
        return Equal(
            headrace=self._headrace("group", "delete", group, "--yes"),
            kafka=self._tool("kafka-consumer-groups.sh", "--delete", "--group", group),
            python="from headrace import Kafka\n\n"
            f"with Kafka({self.bootstrap!r}) as kafka:\n    kafka.groups.delete([{group!r}])",
        )

    # -- nodes --------------------------------------------------------------------------------------------------

    def node(self, verb: str, node: str, pid: int | None) -> Equal:
        process = pid if pid is not None else "PID"
        by_hand = {
            "start": "kafka-server-start.sh server.properties",
            "stop": f"kill {process}   # SIGTERM, as kafka-server-stop.sh sends it",
            "restart": f"kill {process}; kafka-server-start.sh server.properties",
            "kill": f"kill -KILL {process}",
            "pause": f"kill -STOP {process}",
            "resume": f"kill -CONT {process}",
        }[verb]
        return Equal(
            headrace=_line("headrace", verb, node),
            kafka=by_hand,
            python=f"from headrace import Cluster\n\nCluster().{verb}({node!r})",
        )

    # -- schemas and connectors: Kafka has no tools for them, their REST APIs are spoken to by curl ---------------

    def register_schema(self, subject: str, kind: str) -> Equal:
        suffix = {"AVRO": "avsc", "JSON": "json", "PROTOBUF": "proto"}.get(kind, "avsc")
        url = f"{self.registry}/subjects/{_quoted(subject)}/versions"
        named = "" if kind == "AVRO" else f', kind="{kind}"'
        return Equal(
            headrace=_line("headrace", "schema", "register", subject, f"schema.{suffix}"),
            kafka=_curl("POST", url, '{"schema": "…"}', "application/vnd.schemaregistry.v1+json"),
            python=self._registry(
                f"registry.register({subject!r}, Schema(open('schema.{suffix}').read(){named}))", "Registry, Schema"
            ),
        )

    def set_compatibility(self, subject: str, level: str) -> Equal:
        return Equal(
            headrace=_line("headrace", "schema", "compatibility", "set", level, subject),
            kafka=_curl("PUT", f"{self.registry}/config/{_quoted(subject)}", json.dumps({"compatibility": level})),
            python=self._registry(f"registry.set_compatibility({level!r}, {subject!r})"),
        )

    def delete_subject(self, subject: str) -> Equal:
        return Equal(
            headrace=_line("headrace", "schema", "delete", subject, "--yes"),
            kafka=_curl("DELETE", f"{self.registry}/subjects/{_quoted(subject)}"),
            python=self._registry(f"registry.delete({subject!r})"),
        )

    def create_connector(self, name: str, config: Mapping[str, str]) -> Equal:
        body = json.dumps({"name": name, "config": dict(config)})
        return Equal(
            headrace=_line("headrace", "connector", "create", name, *_options("--set", config)),
            kafka=self._ask_connect("POST", "/connectors", body),
            python=f"{self._connectors()}.create({name!r}, {dict(config)!r})",
        )

    def connector_config(self, name: str) -> Equal:
        return Equal(
            headrace=_line("headrace", "connector", "config", name),
            kafka=self._ask_connect("GET", f"/connectors/{_quoted(name)}/config"),
            python=f"{self._connectors()}.config({name!r})",
        )

    def alter_connector(self, name: str, changes: Mapping[str, str | None]) -> Equal:
        given = {key: value for key, value in changes.items() if value is not None}
        unset = [word for key, value in changes.items() if value is None for word in ("--unset", key)]
        return Equal(
            headrace=_line("headrace", "connector", "alter", name, *_options("--set", given), *unset),
            kafka=self._ask_connect("PATCH", f"/connectors/{_quoted(name)}/config", json.dumps(dict(changes))),
            python=f"{self._connectors()}.alter({name!r}, {dict(changes)!r})",
        )

    def connector(self, verb: str, name: str) -> Equal:
        at = f"/connectors/{_quoted(name)}"
        method, path = {
            "pause": ("PUT", f"{at}/pause"),
            "resume": ("PUT", f"{at}/resume"),
            "stop": ("PUT", f"{at}/stop"),
            "restart": ("POST", f"{at}/restart?includeTasks=true"),
            "delete": ("DELETE", at),
        }[verb]
        words = ["--yes"] if verb == "delete" else []
        return Equal(
            headrace=_line("headrace", "connector", verb, name, *words),
            kafka=self._ask_connect(method, path),
            python=f"{self._connectors()}.{verb}({name!r})",
        )

    def _ask_connect(self, method: str, path: str, body: str | None = None) -> str:
        line = _curl(method, f"{self.connect}{path}", body)
        token = shlex.quote(str(self.connect_token))
        return f'{line} -H "Authorization: Bearer $(cat {token})"' if self.connect_token else line

    def _connectors(self) -> str:
        if self.connect_token:
            return "from headrace import Cluster\n\nCluster().connectors"
        return f"from headrace import Connectors\n\nConnectors({self.connect!r})"

    # -- pipelines ----------------------------------------------------------------------------------------------

    def pipeline(self, verb: str, name: str, file: str = "headrace.toml") -> Equal:
        """`start` or `stop`."""
        where = repr(self.bootstrap) if verb == "start" else ""
        return Equal(
            headrace=_line("headrace", "pipeline", verb, name),
            kafka="# Kafka has no tools for Spark pipelines",
            python=f"from headrace import Pipeline\n\nPipeline.from_file({file!r}, {name!r}).{verb}({where})",
        )

    def redrive(self, name: str, rule: str, reason: str) -> Equal:
        return Equal(
            headrace=_line("headrace", "pipeline", "redrive", name, "--rule", rule, "--reason", reason),
            kafka="# Kafka has no tools for dead letters",
            python="from headrace import Pipeline, Wanted\n\n"
            f"pipeline = Pipeline.from_file('headrace.toml', {name!r})\n"
            f"print(pipeline.redrive({self.bootstrap!r}, Wanted(rules=({rule!r},), reasons=({reason!r},))))",
        )

    # -- SQL ----------------------------------------------------------------------------------------------------

    def sql(self, query: str) -> Equal:
        where = f", {self.bootstrap!r}" if self.foreign else ""
        return Equal(
            headrace=self._headrace("sql", query),
            kafka="# Kafka's tools know no SQL",
            python=f"from headrace import sql\n\nfor row in sql({query!r}{where}).rows():\n    print(row)",
        )

    # -- how they are written -----------------------------------------------------------------------------------

    def _headrace(self, *words: object) -> str:
        where = ["--bootstrap", self.bootstrap] if self.foreign else []
        return _line("headrace", *words, *where)

    def _tool(self, script: str, *words: object) -> str:
        return _line(script, "--bootstrap-server", self.bootstrap, *words)

    def _kafka(self, call: str, *, new_topic: bool = False) -> str:
        names = "Kafka, NewTopic" if new_topic else "Kafka"
        return f"from headrace import {names}\n\nwith Kafka({self.bootstrap!r}) as kafka:\n    {call}"

    def _registry(self, call: str, names: str = "Registry") -> str:
        return f"from headrace import {names}\n\nwith Registry({self.registry!r}) as registry:\n    {call}"


def _bracketed(value: str) -> str:
    """kafka-configs.sh separates settings by commas; a value with commas stands in brackets."""
    return f"[{value}]" if "," in value else value


def _reset_words(to: str) -> list[object]:
    if to in {"beginning", "end"}:
        return ["--to-earliest" if to == "beginning" else "--to-latest"]
    if to.startswith("shift:"):
        return ["--shift-by", to.removeprefix("shift:").lstrip("+")]
    if to.isdecimal():
        return ["--to-offset", to]
    if to.startswith("-"):
        return ["--by-duration", f"PT{to[1:].upper().replace('MIN', 'M')}"]
    return ["--to-datetime", to if to.count(":") > 1 else f"{to}:00.000"]


def _curl(method: str, url: str, body: str | None = None, kind: str = "application/json") -> str:
    words = ["curl", "-X", method, url]
    if body is not None:
        words += ["-H", f"Content-Type: {kind}", "-d", body]
    return _line(*words)


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
