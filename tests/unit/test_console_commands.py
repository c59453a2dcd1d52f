"""The commands that the console shows: each can be typed as it stands."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable

import click
import pytest

import headrace
from headrace.cli import cli
from headrace.console.commands import Commands, Equal

COMMANDS = Commands("127.0.0.1:9092", registry="http://127.0.0.1:8081", connect="http://127.0.0.1:8083")
HOSTILE = "o'rders; rm -rf $HOME `x`"

EVERY: dict[str, Callable[[Commands], Equal]] = {
    "create topic": lambda c: c.create_topic(
        "orders", 6, 3, {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
    ),
    "create topic by defaults": lambda c: c.create_topic("orders", None, None, {}),
    "alter topic": lambda c: c.alter_topic("orders", 9, {"retention.ms": "1000", "segment.ms": None}),
    "clean topic": lambda c: c.clean_topic("orders", [0, 1]),
    "delete topic": lambda c: c.delete_topic("orders"),
    "elect": lambda c: c.elect_preferred(),
    "consume": lambda c: c.consume("orders", "beginning", 50),
    "consume a partition": lambda c: c.consume("orders", "1500", 50, 2),
    "follow": lambda c: c.consume("orders", "end", 50),
    "produce": lambda c: c.produce("orders", "key", '{"a": 1}', {"source": "me"}, 1),
    "produce a tombstone": lambda c: c.produce("orders", "key", None, {}),
    "produce anything": lambda c: c.produce("orders", HOSTILE, HOSTILE, {"h": HOSTILE}),
    "reset": lambda c: c.reset_group("g", "shift:-100", ["orders"], execute=True),
    "reset to a time": lambda c: c.reset_group("g", "-1h", [], execute=False),
    "delete group": lambda c: c.delete_group(HOSTILE),
    "kill": lambda c: c.node("kill", "broker-2", 4711),
    "register": lambda c: c.register_schema("orders-value", "AVRO"),
    "register Protobuf": lambda c: c.register_schema("orders-value", "PROTOBUF"),
    "compatibility": lambda c: c.set_compatibility("orders-value", "FULL"),
    "delete subject": lambda c: c.delete_subject("orders-value"),
    "create connector": lambda c: c.create_connector("lines", {"connector.class": "FileStreamSource", "file": "a b"}),
    "alter connector": lambda c: c.alter_connector("lines", {"file": HOSTILE, "topic": None}),
    "connector config": lambda c: c.connector_config("lines"),
    "pause connector": lambda c: c.connector("pause", "lines"),
    "start pipeline": lambda c: c.pipeline("start", "breadcrumbs"),
    "stop pipeline": lambda c: c.pipeline("stop", "breadcrumbs"),
    "redrive": lambda c: c.redrive("breadcrumbs", "has a trip", HOSTILE),
    "delete connector": lambda c: c.connector("delete", HOSTILE),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("foreign", [False, True], ids=["here", "foreign"])
def test_the_command_line_takes_it(name: str, foreign: bool) -> None:
    equal = EVERY[name](Commands("127.0.0.1:9092", foreign, COMMANDS.registry, COMMANDS.connect))
    words = shlex.split(equal.headrace.rpartition(" | ")[2])
    assert words[0] == "headrace"
    command: click.Command = cli
    rest = words[1:]
    # As the command itself sets it up: click remembers a command's help option as its first context named it.
    context = click.Context(cli, info_name="headrace", **cli.context_settings)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command {rest[0]!r}"
        command, rest = found, rest[1:]
    # Parses the words as the shell would hand them over; what it does not know is an error.
    command.make_context(words[1], list(rest), parent=context)


@pytest.mark.parametrize("name", EVERY)
def test_python_reads_it(name: str) -> None:
    tree = ast.parse(EVERY[name](COMMANDS).python)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.module == "headrace"
            for alias in node.names:
                assert hasattr(headrace, alias.name), f"headrace has no {alias.name}"


@pytest.mark.parametrize("name", EVERY)
def test_the_shell_reads_the_tools_line(name: str) -> None:
    assert shlex.split(EVERY[name](COMMANDS).kafka.replace("<(", "(").replace("#", " "))


def test_what_people_type_stays_one_word() -> None:
    words = shlex.split(COMMANDS.delete_group(HOSTILE).headrace)
    assert words == ["headrace", "group", "delete", HOSTILE, "--yes"]
    assert ast.parse(COMMANDS.delete_group(HOSTILE).python)
