from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

import headrace
import headrace.cli
from headrace.cli.app import Root, cli
from tests.conftest import Headrace

_HEAVY = (
    "confluent_kafka",
    "duckdb",
    "kafka",
    "pyarrow",
    "pyspark",
    "nicegui",
    "fastapi",
    "psutil",
    "cryptography",
    "rich",
)
_SHOW_HELP = f"""
import sys
sys.argv = ["headrace", *sys.argv[1:]]
from headrace.cli import main
try:
    main()
finally:
    print("loaded:", *[name for name in {_HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["up", "--help"],
        ["pipeline", "run", "--help"],
        ["sql", "--help"],
        ["console", "--help"],
        ["--version"],
    ],
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", _SHOW_HELP, *words], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "loaded:"


def test_a_list_of_pipelines_loads_nothing_heavy(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('[pipelines.rides]\nfrom = "rides"\ninto = { delta = "rides" }\n', encoding="utf-8")
    words = ["pipeline", "list", "--file", str(file)]
    done = subprocess.run([sys.executable, "-c", _SHOW_HELP, *words], capture_output=True, text=True, check=True)
    assert "rides" in done.stdout
    assert done.stderr.strip() == "loaded:"


def test_every_command_explains_itself(run: Headrace) -> None:
    listing = run("--help").out
    sections = [line for line in listing.splitlines() if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert sections[1:] == ["Cluster:", "Records:", "Schemas and connectors:", "Pipelines and tables:", "Learn:"]
    listed = re.findall(r"^  ([a-z]+)  +\S.*", listing.partition("Cluster:")[2], re.MULTILINE)
    assert listed == list(Root.files)
    assert "..." not in listing.partition("Cluster:")[2]  # each line fits a terminal of 80 columns
    for command in listed:
        done = run(command, "--help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: headrace {command}")


def test_every_file_of_the_command_line_is_found_by_its_commands() -> None:
    for module in pkgutil.iter_modules(headrace.cli.__path__):
        importlib.import_module(f"headrace.cli.{module.name}")
    assert set(cli.commands) == set(Root.files)
    for name, files in Root.files.items():
        assert set(files) == _files_of(cli.commands[name])


def _files_of(command: click.Command) -> set[str]:
    """Where the command, and whatever hangs on it, is written."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {command.callback.__module__.rsplit(".", 1)[-1]} if command.callback else set()
    return own.union(*map(_files_of, below))


def test_a_command_does_not_load_the_others() -> None:
    code = "import sys; sys.argv = ['headrace', 'up', '--help']\nfrom headrace.cli import main\ntry: main()\n"
    code += "finally: print(*[m for m in sys.modules if m in ('headrace.cli.topic', 'headrace.cli.cluster')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "headrace.cli.cluster"


def test_the_package_opens_without_its_rooms() -> None:
    code = "import sys, headrace; print([m for m in sys.modules if m.startswith('headrace.')], headrace.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("['headrace.lazy'] ")


@pytest.mark.parametrize(
    "room",
    [
        "cluster", "console", "kafka", "kafka.browse", "kafka.read", "kafka.write", "labs", "monitor", "pipeline",
        "query", "runtime", "samples", "schemas", "tables",
    ],
)  # fmt: skip
def test_a_room_exports_the_names_that_other_rooms_import(room: str) -> None:
    """That nothing else of it is imported, import-linter checks (pyproject.toml)."""
    door = importlib.import_module(f"headrace.{room}")
    assert set(door.__all__) == _imported_from(room)
    for name in door.__all__:
        assert not isinstance(getattr(door, name), ModuleType)
    with pytest.raises(AttributeError, match=f"module 'headrace.{room}' has no attribute 'nothing'"):
        _ = door.nothing


def _imported_from(room: str) -> set[str]:
    """The names that the rest of the package imports from the room."""
    source = Path(headrace.__file__).parent
    others = [path for path in source.rglob("*.py") if not path.is_relative_to(source / room.replace(".", "/"))]
    nodes = [node for path in others for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == f"headrace.{room}"]
    # A room that is itself a public name is also used as `samples.taxi`.
    used = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    public = {node.attr for node in used if room in headrace.__all__ and node.value.id == room}  # type: ignore[attr-defined]
    return {alias.name for node in froms for alias in node.names} | public
