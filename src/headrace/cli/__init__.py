"""Parse, call, print: the command line, one file per noun."""

from headrace.cli import cluster  # noqa: F401 - it hangs its commands on the trunk
from headrace.cli.app import cli, main

__all__ = ["cli", "main"]
