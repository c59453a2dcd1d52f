"""Parse, call, print: the command line, one file per noun."""

# Its own name is taken by the entry point below.
import headrace.cli.console as _console
from headrace.cli.app import Root, cli, console, main

_NODES = ("up", "down", "status", "start", "stop", "restart", "kill", "pause", "resume", "logs", "doctor", "config")

Root.add_section("Cluster", {**dict.fromkeys(_NODES, ("cluster",)), "console": ("console",)})
Root.add_section(
    "Records",
    {"topic": ("topic", "segments"), "produce": ("produce",), "consume": ("consume",), "group": ("group",)},
)
Root.add_section("Schemas and connectors", {"schema": ("schema",), "connector": ("connector",)})
Root.add_section(
    "Pipelines and tables",
    {"pipeline": ("pipeline", "graph", "recovery"), "table": ("table",), "sql": ("sql",)},
)
Root.add_section("Learn", {"demo": ("demo",), "lab": ("lab",), "sample": ("sample",)})

__all__ = ["cli", "console", "main"]
