"""The tree of errors on top of `errors.py` is the truth: each class with its parent, exit code and HTTP status."""

from __future__ import annotations

import re

from headrace import errors


def test_exit_code_and_http_status_follow_from_the_class() -> None:
    drawn = re.findall(r"^    ([│ ├└─]*)(\w+) +(\d) +(\d{3}) ", errors.__doc__ or "", re.MULTILINE)
    parents: dict[int, str] = {0: "HeadraceError"}
    told = {}
    for branches, name, code, status in drawn:
        depth = len(branches) // 4
        parents[depth] = name
        told[name] = (parents[depth - 1], int(code), int(status))
    classes = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.HeadraceError)]
    assert told == {
        kind.__name__: (kind.__bases__[0].__name__, kind.exit_code, kind.http_status)
        for kind in classes
        if kind is not errors.HeadraceError
    }
