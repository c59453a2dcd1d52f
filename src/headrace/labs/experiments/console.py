"""The console: topics created and watched in a browser, with Kafka's own numbers.

A person creates topics in a web page, with defaults or with settings of their own, and sees a summary; while records
flow, the page shows what goes in and out, the bytes that are stored, and how far a group is behind. Each page has a
twin below /api that is made of the same data, so this experiment asks the twin as a script would, with the token of the
console's start, and compares every number with what was sent, what was read, and what the brokers report.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from headrace import ConsumeOptions, Pace, ProduceOptions, Until, consume, produce
from headrace.labs.consoles import ConsoleApi
from headrace.labs.expect import Expectation, at_least, contains
from headrace.labs.figures import BLUE, ORANGE, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

_PLAIN, _CUSTOM, _WATCHED = "made-in-the-console", "made-with-settings", "watched"
_SUMMARY = ("min.insync.replicas", "cleanup.policy", "retention.ms", "retention.bytes")
_ADDRESS = "python -c 'import headrace; print(headrace.Cluster().console)'"
# The console polls every two seconds; a busy machine may be late.
_POLLS_S = 30.0


def run(lab: Workbench) -> None:
    api = ConsoleApi(lab.cluster.open_console())
    lab.shows("headrace console", f"api=$({_ADDRESS})/api", "token=$(cat .headrace/console/token)")
    _way_in(lab, api)
    _create(lab, api)
    group = lab.group("lab-console")
    _watch(lab, api, group)
    _records(lab, api)
    for topic in (_PLAIN, _CUSTOM, _WATCHED):
        api("DELETE", f"/api/topics/{topic}")
    lab.step("Topics are deleted in the console too")
    left = {topic.name for topic in lab.kafka.topics()} & {_PLAIN, _CUSTOM, _WATCHED}
    lab.check("topics left", set(), left)


def _way_in(lab: Workbench, api: ConsoleApi) -> None:
    lab.step("The way in", "The address that is printed carries a token; a browser trades it for a session.")
    page = {"Accept": "text/html"}
    lab.check("a browser without the token", 401, api.ask("GET", "/topics", page)[0])
    status, headers, _ = api.ask("GET", api.entrance, page)
    lab.check("with it: sent on to the first page", [303, "/"], [status, headers["Location"]])
    page["Cookie"] = headers["Set-Cookie"].partition(";")[0]
    for path in ("/", "/topics", "/groups", "/brokers", "/timeline"):
        status, _, text = api.ask("GET", path, page)
        lab.check(f"page {path}", [200, True], [status, "<html" in text])
    brokers = api.get("/api/brokers")["brokers"]
    lab.check("brokers that it shows as up", set(lab.kafka.live_brokers()),
              {broker["broker_id"] for broker in brokers if broker["state"] == "up"})  # fmt: skip


def _create(lab: Workbench, api: ConsoleApi) -> None:
    lab.step("A topic with the defaults", "Name and partitions are all that is asked for.")
    lab.claim_topic(_PLAIN)
    body: dict[str, object] = {"name": _PLAIN, "partitions": 3}
    lab.shows(_curl("/topics", body))
    lab.check("the answer", (201, {"topic": _PLAIN}), api("POST", "/api/topics", body))
    _summary(lab, api, _PLAIN, {"partitions": 3})

    lab.step("A topic with settings of its own")
    lab.claim_topic(_CUSTOM)
    own = {"cleanup.policy": "compact", "retention.ms": "3600000", "retention.bytes": "1000000"}
    body = {"name": _CUSTOM, "partitions": 4, "replication": 2, "configs": own}
    lab.shows(_curl("/topics", body))
    lab.check("the answer", (201, {"topic": _CUSTOM}), api("POST", "/api/topics", body))
    _summary(lab, api, _CUSTOM, {"partitions": 4, "replication": 2, **own})
    status, answer = api("POST", "/api/topics", body)
    lab.check("once more: refused", 409, status)
    lab.check("with the reason", contains("exists already"), answer["problem"])


def _summary(lab: Workbench, api: ConsoleApi, topic: str, asked: dict[str, object]) -> None:
    """What the page shows of the topic is what the brokers have, and what was asked for."""
    answer = api.get(f"/api/topics/{topic}")["described"]
    shown: dict[str, object] = {"partitions": answer["partition_count"], "replication": answer["replication"]}
    shown |= {name: answer["configs"][name]["value"] for name in _SUMMARY}
    found = lab.describe(topic)
    real: dict[str, object] = {"partitions": len(found.partitions), "replication": found.replication}
    real |= {name: found.configs[name].value for name in _SUMMARY}
    lab.table(f"summary of {topic}", ["", "in the console", "by the brokers"],
              [(name, shown[name], real[name]) for name in shown])  # fmt: skip
    lab.check("what the brokers have otherwise", [], [name for name in real if real[name] != shown[name]])
    lab.check("and what was asked for", asked, {name: shown[name] for name in asked})


def _watch(lab: Workbench, api: ConsoleApi, group: str) -> None:
    count = lab.p.records
    began = datetime.now(UTC)
    lab.topic(_WATCHED, partitions=3, fixed=True)
    lab.step("What goes in", f"{lab.p.rate:g} records a second, while the console polls every two seconds.")
    sample = lab.sample("breadcrumbs", count, "bcsample.json")
    lab.shows(f"headrace produce {_WATCHED} bcsample.json --rate {lab.p.rate:g}")
    options = ProduceOptions(pace=Pace(rate=lab.p.rate))
    sent = produce(lab.cluster, _WATCHED, sample, options=options)
    lab.check("records acknowledged", count, sent.acknowledged)
    (size,) = lab.kafka.topic_sizes([_WATCHED])
    now = lab.until(lambda: _seen(api, count, size.size_bytes), _POLLS_S, "records and bytes in the console, as sent,")
    lab.shows(_curl(f"/topics/{_WATCHED}/bytes"))
    points = api.get(f"/api/topics/{_WATCHED}/bytes")["data"]
    lab.table("the newest points", ["timestamp", "value"], [(p["timestamp"], p["value"]) for p in points[-3:]])
    lab.check("offsets", count, now["offsets"])
    lab.check("bytes stored, as the brokers say", size.size_bytes, now["size_bytes"])
    lab.check("the newest point of the series", size.size_bytes, points[-1]["value"])

    lab.step("How far a group is behind")
    half = count // 2
    lab.shows(f"headrace consume {_WATCHED} --group {group} --until count:{half}")
    first = ConsumeOptions(group=group, until=Until("count", half))
    read = sum(1 for _ in consume(lab.cluster, _WATCHED, options=first))
    lab.check("records read", half, read)
    lab.check("lag in the console", count - half, _lag(lab, api, group, count - half))
    lab.shows(f"headrace consume {_WATCHED} --group {group}")
    read = sum(1 for _ in consume(lab.cluster, _WATCHED, group=group))
    lab.check("records read of the rest", count - half, read)
    lab.check("lag in the console after that", 0, _lag(lab, api, group, 0))
    _rates(lab, api, began)


def _seen(api: ConsoleApi, records: int, size_bytes: int | None) -> Any:
    """What the console shows, once it has polled after the last record; it polls bytes less often than offsets."""
    status, answer = api("GET", f"/api/topics/{_WATCHED}")
    now = answer["now"] if status == 200 else None
    return now if now and (now["offsets"], now["size_bytes"]) == (records, size_bytes) else None


def _lag(lab: Workbench, api: ConsoleApi, group: str, expected: int) -> int | None:
    """The lag that the console shows once it has seen the group's last commit, or the last one it showed."""
    seen: list[int | None] = [None]

    def agrees() -> bool:
        status, answer = api("GET", f"/api/groups/{quote(group)}")
        seen[0] = answer["lag"] if status == 200 else None
        return seen[0] == expected

    lab.until(agrees, _POLLS_S, f"a lag of {expected} in the console")
    return seen[0]


def _rates(lab: Workbench, api: ConsoleApi, began: datetime) -> None:
    lab.step("In and out over time", "The rates come from the offsets of each poll.")
    lab.shows(_curl(f"/topics/{_WATCHED}/rates"))
    answer = {**api.get(f"/api/topics/{_WATCHED}/rates"), "bytes": api.get(f"/api/topics/{_WATCHED}/bytes")["data"]}
    # An earlier run may have had a topic of that name too.
    series = {name: [(_after(point, began), point["value"]) for point in answer[name] if _after(point, began) >= 0]
              for name in ("in", "out", "bytes")}  # fmt: skip
    fastest = max((value or 0 for _, value in series["in"]), default=0)
    lab.measure("highest rate that the console saw", fastest, "records/s")
    near = Expectation(f"near {lab.p.rate:g} records/s", lambda seen: 0.5 * lab.p.rate <= seen <= 2.5 * lab.p.rate)
    lab.check("records in, at their fastest", near, fastest, timing=True)
    lab.check("polls while records came in", at_least(2), sum(bool(value) for _, value in series["in"]),
              timing=True)  # fmt: skip
    lab.check("polls while records were read", at_least(1), sum(bool(value) for _, value in series["out"]))
    metrics = api.ask("GET", "/metrics", {"Authorization": f"Bearer {api.token}"})[2]
    name = f'headrace_topic_offsets{{topic="{_WATCHED}"}}'
    line = next((line for line in metrics.splitlines() if line.startswith(name)), "")
    lab.check("Prometheus gets the same", f"{name} {lab.p.records}", line)
    lab.figure("bytes", "Bytes and records in and out of the topic, as the console has kept them",
               _draw, series, height=4.2)  # fmt: skip


def _after(point: dict[str, str], began: datetime) -> float:
    return (datetime.fromisoformat(point["timestamp"]) - began).total_seconds()


def _records(lab: Workbench, api: ConsoleApi) -> None:
    lab.step("Records, with their visibility")
    lab.shows(_curl(f"/topics/{_WATCHED}/records?from=beginning&limit=20"))
    page = api.get(f"/api/topics/{_WATCHED}/records?from=beginning&limit=20")
    lab.check("records of the first page", 20, len(page["records"]))
    lab.check("their visibility", {"committed"}, {record["mark"] for record in page["records"]})
    changed = [event for event in api.get("/api/events?limit=500") if event["topic"] == _WATCHED]
    lab.table("the timeline", ["event"], [(event["text"],) for event in changed[:4]])
    lab.check("the timeline knows that the topic was created", at_least(1, "event"), len(changed))


def _curl(path: str, body: object = None) -> str:
    data = f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'" if body else ""
    return f'curl -sH "Authorization: Bearer $token"{data} "$api{path}"'


def _draw(figure: Figure, series: dict[str, list[tuple[float, float | None]]]) -> None:
    above, below = figure.subplots(2, sharex=True)
    times, sizes = zip(*series["bytes"], strict=True)
    above.step(times, [(size or 0) / 1000 for size in sizes], where="post", marker=".", color=BLUE)
    above.set_ylabel("kB stored")
    above.set_ylim(0)
    for name, colour in (("in", BLUE), ("out", ORANGE)):
        below.plot(*zip(*series[name], strict=True), marker=".", color=colour, label=name)
    below.set_ylabel("records/s")
    below.set_xlabel("seconds")
    below.legend()


LAB = Lab(
    "S3",
    ("S3.5", "S2.B"),
    run,
    needs=Needs(services=("console",), topics=(_PLAIN, _CUSTOM, _WATCHED)),
    parameters=(
        Parameter("records", 1000, "breadcrumbs that are sent while the console polls", least=100, most=100_000),
        Parameter("rate", 100.0, "records a second", fast=200.0, least=5, most=5000),
    ),
)
