"""`make audit`: pins against published fixes."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from audit import pins

_ROOT = Path(__file__).parents[2]
_AS_OF, _KNOWN = pins.advisories((_ROOT / "audit" / "advisories.txt").read_text(encoding="utf-8"))
# What was pinned when these fixes had been public for weeks.
_OLD_LOCK = """
[connect]
at.yawk.lz4:lz4-java:1.11.2 0 1
com.fasterxml.jackson.core:jackson-annotations:2.21 0 1
com.fasterxml.jackson.core:jackson-databind:2.21.6 0 1
com.github.luben:zstd-jni:1.5.6-10 0 1
org.eclipse.jetty:jetty-http:12.0.37 0 1
org.xerial.snappy:snappy-java:1.1.10.7 0 1
[kafka]
org.xerial.snappy:snappy-java:1.1.10.7 0 1
"""


def test_nothing_that_is_pinned_has_a_published_fix() -> None:
    locked = pins.jar_pins((_ROOT / "src/headrace/runtime/jars.lock").read_text(encoding="utf-8"))
    for name in ("requirements.lock", "requirements-dev.lock"):
        locked += pins.python_pins((_ROOT / name).read_text(encoding="utf-8"), name)
    assert len(locked) > 200
    # On the day of the table: the suite does not turn red with the calendar, `make audit` does.
    assert not [pin for pin, (_, late) in pins.overdue(locked, _KNOWN, _AS_OF).items() if late]


def test_old_pins_are_overdue() -> None:
    found = pins.overdue(pins.jar_pins(_OLD_LOCK), _KNOWN, _AS_OF)
    assert {pin.package.partition(":")[2]: late for pin, (_, late) in found.items()} == {
        "lz4-java": True, "jackson-databind": True, "jetty-http": True, "snappy-java": True,
    }  # fmt: skip
    [snappy] = [pin for pin in found if "snappy" in pin.package]
    assert snappy.where == "connect, kafka"
    assert found[snappy][0].fixed_in == "1.1.10.12"
    [jetty] = [advisory for pin, (advisory, _) in found.items() if "jetty" in pin.package]
    assert jetty.fixed_in == "12.0.40"


def test_a_fix_may_wait_for_two_weeks() -> None:
    fix = pins.Advisory("click", "8.10", date(2026, 11, 1), ("CVE-0",))
    old, new = pins.python_pins("click==8.9.1 \\\n    --hash=sha256:00\nclick==8.10 ; python_version > '3'\n", "lock")
    for waited, late in ((14, False), (15, True)):
        found = pins.overdue([old, new], [fix], fix.published + timedelta(days=waited))
        assert found == {old: (fix, late)}
