"""Parse, call, print: the command line, one file per noun."""

# Its own name is taken by the entry point below.
import headrace.cli.console as _console  # noqa: F401
from headrace.cli.app import Root, cli, console, main

_CLUSTER = (
    "up", "down", "status", "start", "stop", "restart", "kill", "pause", "resume", "logs", "doctor", "config",
)  # fmt: skip
Root.files.update(
    {
        **dict.fromkeys(_CLUSTER, ("cluster",)),
        "demo": ("demo",),
        "topic": ("topic", "segments"),
        "produce": ("produce",),
        "consume": ("consume",),
        "group": ("group",),
        "schema": ("schema",),
        "connector": ("connector",),
        "pipeline": ("pipeline", "recovery"),
        "table": ("table",),
        "sample": ("sample",),
        "lab": ("lab",),
        "console": ("console",),
    }
)

__all__ = ["cli", "console", "main"]
