"""The pages are true: the reference is what the commands say, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from headrace.cli import cli
from headrace.cluster import Cluster
from headrace.config import KEYS
from headrace.kafka import Kafka
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.producer import produce
from headrace.runtime.jars import jar_lock

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_commands_say() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == generator().page(), "make docs writes it anew"


def test_the_api_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == generator().api_page(), "make docs writes it anew"


def test_what_the_pages_teach_is_public() -> None:
    """An example imports from the top, or example data; a deeper path would be a promise about the inside."""
    deeper = re.compile(r"^\s*from (headrace\.(?!samples\b)[\w.]+) import", re.MULTILINE)
    found = {page.name: deeper.findall(code) for page in PAGES for code in python_blocks(page)}
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_the_sizes_of_downloads_are_those_of_the_lock_file() -> None:
    sets = {name: set(artifacts) for name, artifacts in jar_lock().items()}
    sets["connect"] |= sets.pop("connect-plugins")
    kafka = sets.pop("kafka")
    size_mb = {name: sum(a.size for a in artifacts - kafka) / 1e6 for name, artifacts in sets.items()}
    size_mb["kafka"] = sum(a.size for a in kafka) / 1e6
    rows = {"kafka": "up`: Kafka", "registry": "--with registry", "connect": "--with connect", "spark": "pipeline run",
            "tools": "lab tool"}  # fmt: skip
    page, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/install.md", "README.md"))
    for name, row in rows.items():
        said = re.search(rf"{re.escape(row)}.*\| ([\d.]+) MB", page)
        assert said, name
        assert float(said[1]) == pytest.approx(size_mb[name], abs=0.5), name
    names = {"kafka": "Kafka", "registry": "the schema registry", "connect": "Connect", "spark": "pipelines"}
    for name, words in names.items():
        assert f"{size_mb[name]:.0f} MB for {words}" in readme


def test_every_command_is_told_of_outside_the_reference() -> None:
    told = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "cli.md")
    missing = [name for name in cli.list_commands(click.Context(cli)) if not re.search(rf"\b{re.escape(name)}\b", told)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_setting_is_in_the_pages() -> None:
    told = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    missing = [key.name for key in KEYS if key.name.split(".", 1)[1] not in told]
    assert not missing


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run_python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_readmes_example_runs(tmp_path: Path) -> None:
    (code,) = python_blocks(ROOT / "README.md")
    assert run_python(code, tmp_path).splitlines()[0] == "1000 0"
    Cluster(tmp_path / "demo").down(wipe=True)


#: The pages whose Python runs elsewhere: in another test, with a registry or a Spark session, as a test of the plugin.
_ELSEWHERE = {"README.md", "pipelines.md", "tables.md", "schemas.md", "state.md", "testing.md"}
_ON_A_KAFKA = [page for page in PAGES if page.name not in _ELSEWHERE and python_blocks(page)]


@pytest.mark.parametrize("page", _ON_A_KAFKA, ids=lambda page: page.name)
def test_the_examples_of_the_page_run(page: Path, headrace_cluster: Cluster, tmp_path: Path) -> None:
    """As a reader pastes them, on a Kafka where a group named "reporting" has read something."""
    admin = Kafka(headrace_cluster)
    before = {topic.name for topic in admin.topics()}
    produce(headrace_cluster, "reports", ["one"], create=True)
    list(consume(headrace_cluster, "reports", group="reporting"))
    try:
        for code in python_blocks(page):
            out = run_python(code.replace("127.0.0.1:9092", headrace_cluster.bootstrap), tmp_path)
            assert out.strip()
    finally:  # other tests use the cluster too
        admin.delete_topics([topic.name for topic in admin.topics() if topic.name not in before])
        Cluster(tmp_path / "kafka").down(wipe=True)


def test_the_examples_of_pipelines_and_tables_run(tmp_path: Path) -> None:
    """The declaration is the README's."""
    (declaration,) = re.findall(
        r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "headrace.toml").write_text(declaration, encoding="utf-8")
    (pipeline, _), (table,) = (python_blocks(ROOT / "docs" / page) for page in ("pipelines.md", "tables.md"))
    try:
        run, lag, group, sent = run_python(pipeline, tmp_path).splitlines()
    finally:
        Cluster(tmp_path / "demo").down(wipe=True)
    # One sale is in the table, the other broke a rule and was sent again.
    assert run == "2 read: 1 written, 1 dead; balanced"
    assert group.startswith("1 is positive ")
    assert (sent, lag) == ("sent again: 1", "lag: 0")
    assert run_python(table, tmp_path).startswith("1 shop: string")


def test_every_command_of_the_pages_can_be_typed() -> None:
    """The words behind `$ headrace` are a command, and its options exist."""
    for page in PAGES:
        for line in re.findall(r"^\$ headrace ((?:.*\\\n)*.*)", page.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            cut = next((at for at, word in enumerate(words) if word in {"|", ">", "&", "&&", ";"}), len(words))
            command, context = resolve(words[:cut])
            if command.context_settings.get("ignore_unknown_options"):  # its words are for another program
                continue
            known = {name for parameter in command.get_params(context) for name in parameter.opts}
            given = {word.partition("=")[0] for word in words[:cut] if re.match(r"--[a-z]", word)}
            assert given - {"--help"} <= known, f"{page.name}: headrace {line}"


def resolve(words: list[str]) -> tuple[click.Command, click.Context]:
    """The command that the words name; options before its name are those of every command."""
    command: click.Command = cli
    context = click.Context(cli)
    for word in words:
        if not isinstance(command, click.Group):
            break
        if found := command.get_command(context, word):
            command = found
            context = click.Context(command, parent=context)
    assert command is not cli, words
    return command, context
