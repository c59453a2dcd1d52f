"""Parse, call, print: the command line, one file per noun."""

# Imported for the commands that they hang on the trunk, in the order of `headrace --help`.
from headrace.cli import cluster, demo, topic, produce, consume, group, schema, connector, pipeline, table, sample, lab  # noqa: F401, I001
from headrace.cli.app import cli, console, main

__all__ = ["cli", "console", "main"]
