"""What every lab stands on: expectations that can fail, results that can be read back, reports that hold everything."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import cli
from headrace.cluster import Cluster
from headrace.errors import Failed, NodeFailed, TimedOut, Unreachable, UsageError
from headrace.home import Home
from headrace.labs import NAMES, clusters, every_lab, find_lab, runner
from headrace.labs import lab as lab_module
from headrace.labs.consoles import SharedConsoles
from headrace.labs.expect import anything_but, at_least, at_most, between, contains, holds, one_of, shown
from headrace.labs.experiments.transactions import falls_both_ways
from headrace.labs.lab import DOCUMENTS, Lab, Needs, require_valid
from headrace.labs.load import Load
from headrace.labs.report import to_html, to_markdown, totals, write_reports
from headrace.labs.result import Entry, LabResult, Trouble, kept_results, result_folder, save
from headrace.labs.runner import ordered
from headrace.labs.workbench import Stopped, TooBusy, Workbench
from headrace.runtime.waiting import NotYet, eventually
from tests.conftest import Headrace
from tests.labs.commands import files_that_nothing_made, require_real

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("expected", "good", "bad"),
    [
        (3, 3, 4), ("a", "a", "b"), ([1, 2], [1, 2], [2, 1]), (at_most(3), 3, 3.1), (at_least(3), 3, 2.9),
        (between(1, 2), 1.5, 0.9), (contains("x"), "axb", "ab"), (one_of([1, 2]), 2, 3), (anything_but(1), 2, 1),
        (at_most(3), 0, None), (True, True, False),
    ],
)  # fmt: skip
def test_expectations_can_fail(expected: Any, good: Any, bad: Any) -> None:
    assert holds(expected, good)
    assert not holds(expected, bad)


def test_values_are_shown_for_the_eye() -> None:
    assert shown(12434) == "12,434"
    assert shown(0.123456) == "0.123"
    assert shown({3, 1, 20}) == "1, 3, 20"
    assert shown(True) == "yes"
    assert shown(None) == "nothing"
    assert shown([]) == "none"
    assert str(at_most(3, "s")) == "at most 3 s"


def test_every_lab_says_what_it_is_and_where_it_belongs() -> None:
    labs = every_lab()
    assert [lab.name for lab in labs] == list(NAMES)
    for lab in labs:
        assert lab.document in DOCUMENTS
        assert lab.rows
        assert all(row.startswith(f"{lab.document}.") or re.match(r"S\d\.", row) for row in lab.rows)
        assert 10 < len(lab.title) < 90, lab.name
        assert len(lab.about) > 200, lab.name
        for parameter in lab.parameters:
            assert parameter.says
            assert parameter.fast is None or type(parameter.fast) is type(parameter.default)


def test_an_unknown_lab_has_a_nearest_name() -> None:
    with pytest.raises(UsageError, match="replicaton"):
        find_lab("replicaton")


def test_parameters_come_from_profile_and_command_line() -> None:
    lab = find_lab("concurrent")
    assert lab.values("full", {}).pause_ms == 250
    assert lab.values("fast", {}).pause_ms == 25
    assert lab.values("fast", {"pause_ms": "7.5", "records": "30"}).pause_ms == 7.5
    with pytest.raises(UsageError, match="colour"):
        require_valid([lab], {"colour": "red"})


@pytest.mark.parametrize("value", ["2", "-1", "0", "9999999", "3.5", "nan", "inf", "", "many"])
def test_a_broken_parameter_is_refused_with_its_range(value: str) -> None:
    with pytest.raises(UsageError, match=r"invalid value for the parameter keys") as refused:
        require_valid([find_lab("keys")], {"keys": value})
    assert "a whole number from 3 to 8" in (refused.value.why or "")
    with pytest.raises(UsageError, match=r"pause_ms"):
        find_lab("concurrent").values("full", {"pause_ms": value if value in ("nan", "inf", "") else "-1"})


def test_a_broken_parameter_ends_the_command_before_anything_is_started(run: Headrace, home: Path) -> None:
    done = run("lab", "run", "keys", "--param", "keys=2", home=home)
    assert (done.code, "keys (the highest key) is a whole number from 3 to 8" in done.err) == (2, True)
    assert not (home / "labs" / "cluster-3").exists()


def test_the_defaults_of_every_parameter_are_in_its_range() -> None:
    for parameter in (p for lab in every_lab() for p in lab.parameters):
        for value in {parameter.default, parameter.fast} - {None}:
            assert parameter.parse(str(value)) == value


def test_labs_that_kill_nodes_run_alone_and_services_come_late() -> None:
    waiting, front, alone = ordered(every_lab())
    assert {lab.name for lab in waiting} == {"concurrent", "flush", "groups", "iris", "transactions"}
    assert not any(lab.needs.faults for lab in [*waiting, *front])
    assert [bool(lab.needs.services) for lab in front] == sorted(bool(lab.needs.services) for lab in front)
    assert {"replication", "controller", "racks", "semantics"} <= {lab.name for lab in alone}
    # One change of topology at most: a cluster of six brokers is not started twice.
    sizes = [lab.needs.brokers for lab in alone]
    assert sizes == sorted(sizes)
    assert ordered([find_lab("iris")])[1] == [find_lab("iris")]


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench("made", Cluster(tmp_path / "none"), SimpleNamespace(), tmp_path / "made")


def result_of(bench: Workbench, **more: Any) -> LabResult:
    made = LabResult("keys", "Title <b>", "About it.\n\n    drawn", "S2", ("S2.F",), "fast", 7, {"n": 1}, **more)
    made.entries = bench.entries
    return made


def test_a_lab_is_green_only_if_something_was_checked_and_everything_holds(bench: Workbench) -> None:
    assert result_of(bench).verdict == "red"
    assert bench.check("sum", 4, 2 + 2)
    assert result_of(bench).verdict == "green"
    assert result_of(bench, trouble=Trouble("it broke")).verdict == "red"
    assert not bench.check("sum", 5, 2 + 2, look="headrace logs 1")
    red = result_of(bench)
    assert (red.verdict, red.reason) == ("red", "sum: expected 5, seen 4")


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Programs that are not ours use every CPU: their parent is gone, so they are nobody's children here."""
    loop = "timeout 300 sh -c 'while :; do :; done' > /dev/null 2>&1 & echo $!;"
    started = subprocess.run(["sh", "-c", loop * 3 * (os.cpu_count() or 1)], capture_output=True, text=True, check=True)
    yield
    for pid in started.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)


def test_a_busy_machine_makes_a_measurement_inconclusive_and_nothing_else(bench: Workbench, busy_machine: None) -> None:
    bench.step("A measurement")
    bench.check("sum", 4, 2 + 2)
    eventually(lambda: bench.excuse, 60)
    assert not bench.check("time", at_most(1, "s"), 2, timing=True)
    unclear = result_of(bench)
    assert unclear.verdict == "inconclusive"
    assert unclear.reason.startswith("this machine is too busy for this measurement: other programs use ")
    assert "1 inconclusive" in totals([unclear])
    with pytest.raises(TooBusy, match="did not happen within"):
        bench.until(lambda: False, 0.1, "it")
    with pytest.raises(TooBusy, match="ended with code 4"):
        bench.types("exit 4")
    with pytest.raises(Failed, match="ended with code 2") as wrong:
        bench.types("exit 2")
    assert not isinstance(wrong.value, TooBusy)
    assert not bench.check("sum", 5, 2 + 2)
    assert result_of(bench).verdict == "red"


def test_inconclusive_has_an_exit_code_of_its_own(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear = result_of(bench, trouble=Trouble("it was late", "this machine is too busy", busy=True))
    monkeypatch.setattr(runner, "run_labs", lambda *_: [unclear])
    done = CliRunner().invoke(cli, ["--home", str(tmp_path), "lab", "run", "keys", "--json"])
    assert (done.exit_code, json.loads(done.output)["verdict"]) == (5, "inconclusive")


def test_on_a_quiet_machine_a_slow_measurement_is_red(bench: Workbench) -> None:
    # No step has begun, so nothing is known of the machine that could excuse it.
    bench.check("time", at_most(1, "s"), 2, timing=True)
    assert result_of(bench).verdict == "red"
    # What the lab itself uses is no excuse.
    load = Load()
    began = time.process_time()
    while time.process_time() - began < 0.5:
        pass
    others, idle = load.shares
    assert others + idle < 1


def test_an_interrupted_lab_stops_at_the_next_step(tmp_path: Path) -> None:
    stopping = threading.Event()
    bench = Workbench("x", Cluster(tmp_path), SimpleNamespace(), tmp_path, stopping=stopping)
    bench.step("one")
    stopping.set()
    for act in (lambda: bench.step("two"), lambda: bench.wait(60), lambda: bench.until(lambda: False, 60, "it")):
        with pytest.raises(Stopped):
            act()


class _Clusters:
    """Stands for a cluster that is never started."""

    def __init__(self, home: Home, **_: Any) -> None:
        self.home = home

    def cluster_for(self, *_: Any) -> Any:
        spec = SimpleNamespace(bootstrap="", brokers=(), kafka_version="", services=())
        return SimpleNamespace(spec=spec, node_states=list, home=self.home, log_sizes=dict, logged_since=lambda *_: {})

    def is_own(self, _: Any) -> bool:
        return True

    def close(self) -> None: ...


def run_alone(home: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Workbench], None]) -> LabResult:
    """The result of a lab that does this, on no cluster."""
    monkeypatch.setattr(runner, "Clusters", _Clusters)
    act.__module__ = "tests.labs.made"
    monkeypatch.setitem(sys.modules, act.__module__, ModuleType(act.__module__, "A lab."))
    listener: Any = SimpleNamespace(began=lambda *_: None, entry=lambda *_: None, ended=lambda *_: None)
    with suppress(KeyboardInterrupt):
        runner.run_labs(Home(home), [Lab("S0", ("S0.1",), act)], runner.RunOptions(), listener)
    (result,) = kept_results(Home(home), ("made",))
    return result


@pytest.mark.parametrize(
    "late",
    [
        NotYet("it was not true"), Unreachable("nobody answers"), TimedOut("broker-2 is not ready after 60 s"),
        NodeFailed("broker-2 died meanwhile"), subprocess.TimeoutExpired("headrace", 120), TimeoutError(),
    ],
    ids=lambda late: type(late).__name__,
)  # fmt: skip
@pytest.mark.parametrize("excuse", ["this machine is too busy", ""])
def test_what_is_late_on_a_busy_machine_is_not_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: Exception, excuse: str
) -> None:
    def act(lab: Workbench) -> None:
        lab.step("Something is waited for")
        lab.check("sum", 4, 2 + 2)
        raise late

    def act_at_the_end(lab: Workbench) -> None:
        def fail() -> None:
            raise late

        lab.step("Something is waited for when all is done")
        lab.check("sum", 4, 2 + 2)
        lab.finally_(fail)

    monkeypatch.setattr(Load, "excuse", excuse)
    for does in (act, act_at_the_end):
        result = run_alone(tmp_path, monkeypatch, does)
        assert result.verdict == ("inconclusive" if excuse else "red"), result.reason
        assert excuse in result.reason


def test_a_lab_that_does_not_stop_in_time_says_that_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_STOP_WITHIN_S", 0.1)
    monkeypatch.setattr(runner, "Clusters", _Clusters)
    deaf = threading.Event()
    left = tmp_path / "labs" / "cluster-automatic"

    def beside(_: Workbench) -> None:
        left.mkdir()
        deaf.wait(60)

    def at_work(_: Workbench) -> None:
        eventually(left.is_dir, 20)
        raise KeyboardInterrupt

    labs = []
    for name, act in (("concurrent", beside), ("quickstart", at_work)):
        act.__module__ = find_lab(name).run.__module__
        labs.append(Lab("S2", ("S2.E",), act, waits=act is beside))
    listener: Any = SimpleNamespace(began=lambda *_: None, entry=lambda *_: None, ended=lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        runner.run_labs(Home(tmp_path), labs, runner.RunOptions(), listener)
    found = {one.name: one.reason for one in kept_results(Home(tmp_path), ("concurrent", "quickstart"))}
    deaf.set()
    assert found == dict.fromkeys(("concurrent", "quickstart"), "it was interrupted")
    assert not left.exists()


def test_a_console_that_never_answers_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def silent(_: Any, **options: Any) -> Any:
        started.append(popen(["sh", "-c", "echo http://127.0.0.1:9/login?token=x; exec sleep 60"], **options))
        return started[0]

    monkeypatch.setattr("headrace.labs.consoles.subprocess.Popen", silent)
    monkeypatch.setattr("headrace.labs.consoles._START_WITHIN_S", 0.1)
    with pytest.raises(NotYet):
        SharedConsoles(tmp_path).get("127.0.0.1:1")
    assert started[0].poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("lab", "given"),
    [
        ("flush", {"pause_every": "15"}), ("flush", {"flush_every": "100"}), ("concurrent", {"pause_ms": "10000"}),
        ("offsets", {"records": "40000"}),
    ],
)  # fmt: skip
def test_parameters_that_would_show_nothing_are_refused(lab: str, given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="|".join(given)):
        require_valid([find_lab(lab)], given)
    require_valid([find_lab(lab)], {})
    require_valid([find_lab(lab)], {}, "fast")


@pytest.mark.parametrize("seed", [7, 45, 479])
def test_the_coin_of_the_transactions_falls_both_ways(seed: int) -> None:
    chosen = falls_both_ways(seed, 8)
    coin = random.Random(chosen)
    assert {coin.random() < 0.5 for _ in range(8)} == {True, False}
    assert (chosen == seed) == (seed == 7)


def test_the_files_of_several_labs_go_into_one_folder(run: Headrace) -> None:
    for name, written in (("iris", True), ("taxi", True), ("iris", False), ("taxi", False)):
        done = run("lab", "files", name, "--json")
        assert (done.code, "headrace.toml" in done.json()["written"]) == (0, written)
    toml = run.folder / "headrace.toml"
    assert set(tomllib.loads(toml.read_text())["pipelines"]) == {"boroughs", "iris", "taxi"}
    # What says something else is neither changed nor passed over.
    toml.write_text(toml.read_text().replace("mean_length", "length"))
    (run.folder / "ride.v1.avsc").unlink()
    assert run("lab", "files", "taxi").code == 0
    (run.folder / "ride.v1.avsc").write_text("{}")
    for name, file in (("iris", "headrace.toml"), ("taxi", "ride.v1.avsc")):
        done = run("lab", "files", name)
        assert (done.code, f"{file} already exists with other contents" in done.err) == (2, True)


def test_a_subject_of_the_users_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**answers: Any) -> Any:
        return lambda *_: nullcontext(SimpleNamespace(**answers))

    monkeypatch.setattr(clusters, "Kafka", found(topics=lambda: [SimpleNamespace(name="mine")]))
    monkeypatch.setattr(clusters, "Registry", found(subjects=lambda *, deleted: ["rides.v1-value"] if deleted else []))
    cluster: Any = SimpleNamespace(registry="")
    assert clusters._taken(cluster, find_lab("upgrade").needs) == {"mine", "rides.v1"}
    assert clusters._taken(cluster, find_lab("iris").needs) == {"mine"}


def test_results_are_kept_and_read_back(bench: Workbench, tmp_path: Path) -> None:
    home = Home(tmp_path)
    bench.step("A step", "with a reason")
    bench.check("a|b", at_most(3), 2)
    bench.measure("time", 1.25, "s")
    made = result_of(bench)
    result_folder(home, "keys").mkdir(parents=True)
    save(home, made)
    assert list(kept_results(home, NAMES)) == [made]
    stored = json.loads((result_folder(home, "keys") / "result.json").read_text())
    assert stored["verdict"] == "green"


def dots(figure: Any) -> None:
    figure.subplots().scatter([1, 2, 3], [4, 5, 6])


def test_reports_hold_everything_that_was_said(bench: Workbench, tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = result_folder(home, "keys")
    bench._folder = folder
    bench.step("Step <1>", "why & how")
    bench.types("seq -f 'line %.0f' 0 39", most=3)
    bench.check("good one", 1, 1)
    bench.check("bad one", 1, 2, look="headrace logs 2")
    bench.measure("speed", 123456, "records/s", "of one run")
    bench.table("rows", ["name", "count"], [("a|b", 1), ("c", None)])
    bench.figure("dots", "Some dots", dots)
    made = result_of(bench, logs={"broker-1": "logs/broker-1.log"})
    markdown = to_markdown([made], lambda _: Path())
    page = to_html(home, [made])
    for part in ("good one", "bad one", "headrace logs 2", "123,456 records/s", "line 2", "37 more lines", "Some dots"):
        assert part in markdown
        assert part in page
    assert "Step &lt;1&gt;" in page
    assert "a\\|b" in markdown
    assert page.count("data:image/svg+xml;base64,") == 2
    assert not re.search(r'(src|href|srcset)="(?!#|data:)', page), "the page needs nothing beside itself"
    assert 'class="pill red"' in page
    write_pages(home, made)


def write_pages(home: Home, made: LabResult) -> None:
    save(home, made)
    page = write_reports(home, [made])
    assert page.read_text().count("<article") == 1
    assert (result_folder(home, "keys") / "report.md").is_file()
    assert "keys/dots.light.svg" in (page.parent / "report.md").read_text()


def test_pictures_are_the_same_for_the_same_data(bench: Workbench) -> None:
    bench.figure("first", "x", dots)
    bench.figure("second", "x", dots)
    one, two = ((bench._folder / f"{name}.light.svg").read_bytes() for name in ("first", "second"))
    assert one == two
    assert (bench._folder / "first.dark.svg").read_bytes() != one


def test_the_list_is_for_people_and_for_scripts(run: Headrace) -> None:
    rows = [json.loads(line) for line in run("lab", "list", "--json").out.splitlines()]
    assert [row["name"] for row in rows] == list(NAMES)
    assert all({"name", "document", "rows", "title"} <= set(row) for row in rows)
    told = run("lab", "list", "keys").out
    assert "--param records=1000" in told
    assert "murmur2" in told
    assert run("lab", "list", "nothing").code == 2
    assert run("lab", "run", "keys", "--param", "colour=red").code == 2
    empty = run("lab", "report")
    assert (empty.code, "no lab has run here yet" in empty.err) == (2, True)


def test_every_lab_is_told_in_the_pages_with_commands_that_can_be_typed() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in DOCS.glob("labs-s*.md")}
    assert {document.lower() for document in DOCUMENTS} == {name.removeprefix("labs-") for name in pages}
    for lab in every_lab():
        story = pages[f"labs-{lab.document.lower()}"].split(f"<!-- lab: {lab.name} -->")[1].split("<!-- end -->")[0]
        commands = re.findall(r"^\$ (.*)$", story, re.MULTILINE)
        assert commands, lab.name
        for line in commands:
            require_real(line)
        assert not files_that_nothing_made(commands), lab.name


def test_needs_and_labs_are_values() -> None:
    assert Needs() == Needs()
    made = Lab("S0", ("S0.1",), lambda _: None)
    assert made.needs.brokers == 3
    assert lab_module.DOCUMENTS["S0"]
    assert Entry("say", {"text": "x"}) == Entry("say", {"text": "x"})
