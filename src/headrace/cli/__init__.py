"""Parse, call, print: the command line, one file per noun."""

# Imported for the commands that they hang on the trunk, in the order of `headrace --help`.
from headrace.cli import cluster, demo, topic, segments, produce, consume, group  # noqa: F401, I001
from headrace.cli import schema, connector, pipeline, recovery, table, sample, lab  # noqa: F401

# Its own name is taken by the entry point below.
import headrace.cli.console as _console  # noqa: F401
from headrace.cli.app import cli, console, main

__all__ = ["cli", "console", "main"]
