"""The options of `produce` and `consume` for how keys and values are encoded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from headrace.cli.app import App, F, registry_option


def codec_options(command: F) -> F:
    """Adds --value, --key-codec and --registry."""
    command = registry_option(command)
    command = click.option(
        "--key-codec", metavar="CODEC", help="The same for keys; the record provides the fields of the schema."
    )(command)
    return click.option(
        "--value",
        metavar="CODEC",
        help="Schema of the values: avro:FILE or avro:SUBJECT, likewise json-schema: and protobuf:. "
        "For consume: the reader's schema, or `registry` to decode each record with the schema it was written with.",
    )(command)


def codecs(app: App, stack: ExitStack, topic: str | None, flags: dict[str, object], *, reading: bool) -> dict[str, Any]:
    """`value_codec` and `key_codec` as the flags name them; the registry stays open as long as the stack."""
    wanted = {"value": flags["value"], "key": flags["key_codec"]}
    if not any(wanted.values()):
        return {}
    from headrace.schemas import open_codec

    registry = stack.enter_context(app.registry())
    return {
        f"{part}_codec": open_codec(text, registry, topic, part=part, reading=reading)  # type: ignore[arg-type]
        for part, text in wanted.items()
        if text
    }
