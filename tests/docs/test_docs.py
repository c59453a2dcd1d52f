"""The pages are true: the reference is what the commands say, links lead somewhere, examples run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from headrace.cli import cli
from headrace.cluster import Cluster
from headrace.config import KEYS
from headrace.transport.admin import Admin, NewTopic

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


def test_the_examples_of_the_records_page_run(headrace_cluster: Cluster, tmp_path: Path) -> None:
    (code,) = python_blocks(ROOT / "docs" / "records.md")
    admin = Admin(headrace_cluster)
    before = {topic.name for topic in admin.topics()}
    for name in ("debits", "credits"):
        admin.ensure_topic(NewTopic(name))
    try:
        out = run_python(code.replace("127.0.0.1:9092", headrace_cluster.bootstrap), tmp_path)
    finally:  # the cluster is everybody's
        admin.delete_topics([topic.name for topic in admin.topics() if topic.name not in before])
    assert out.count('b\'{"n":') == 1000
