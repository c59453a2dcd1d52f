"""A connector's settings: read from Java's properties, and what a connector with them waits for."""

from __future__ import annotations

import pytest

from headrace.connect import properties_in, waiting


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# a comment that ends with \\\n! another\n\n a=1\nb : two words \nc   3\rd=\\u00e9\\ud83d\\ude00\\t|\n"
        "long=first,\\\n   second\r\npath=C:\\\\dir\nkey\\ with\\:both=x=y:z\nempty\nlast=\\"
    )
    assert properties_in(text) == {
        "a": "1", "b": "two words ", "c": "3", "d": "\u00e9\U0001f600\t|", "long": "first,second", "path": "C:\\dir",
        "key with:both": "x=y:z", "empty": "", "last": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("sink", {"topics": "a, b"}, "topic b not found"),
        ("sink", {"topics": "b,c"}, "topics b, c not found"),
        ("sink", {"topics": "a"}, None),
        ("sink", {"topics.regex": "x.*"}, "no topic matches x.*"),
        ("sink", {"topics.regex": "[a-c]"}, None),
        ("sink", {"topics.regex": "\\p{Alpha}"}, None),
        ("source", {"topic": "b"}, "topic b not found"),
        ("source", {"topic": "b", "topic.creation.default.partitions": "1"}, None),
        ("source", {}, None),
    ],
)
def test_what_a_connector_waits_for(kind: str, config: dict[str, str], expected: str | None) -> None:
    assert waiting(kind, config, {"a", "__connect_configs"}) == expected
