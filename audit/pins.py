"""`make audit`: the pinned versions against the advisories that are kept beside this file.

Both locks are checked: requirements*.lock (Python) and jars.lock (Java). Red, with exit code 1, means that a pinned
version is older than a fix that has been public for longer than two weeks; a younger fix is a warning. What others ship
inside of what is pinned (the registry's archive) cannot be replaced by a pin: it is listed and does not fail.

The advisories are data with a date, so that the check needs no network. `pip-audit` knows more about Python packages:
it is asked too, and where its data cannot be reached that is reported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from packaging.version import Version

from headrace.runtime.jars import JarCache, default_cache, parse_lock
from headrace.runtime.spark import artifact_name, pyspark_jars

_ROOT = Path(__file__).parents[1]
_JARS = _ROOT / "src" / "headrace" / "runtime" / "jars.lock"
_PYTHON = (_ROOT / "requirements.lock", _ROOT / "requirements-dev.lock")
#: How long a published fix may wait.
GRACE = timedelta(days=14)


@dataclass(frozen=True)
class Pin:
    """A version that is installed because of us."""

    package: str
    version: str
    where: str


@dataclass(frozen=True)
class Advisory:
    """Versions of `package` below `fixed_in` have a vulnerability that was published on that day."""

    package: str
    fixed_in: str
    published: date
    ids: tuple[str, ...]

    def concerns(self, pin: Pin) -> bool:
        return pin.package == self.package and _order(pin.version) < _order(self.fixed_in)


def advisories(text: str) -> tuple[date, list[Advisory]]:
    """The day on which the table was last compared with the public sources, and its lines."""
    lines = [words for line in text.splitlines() if (words := line.partition("#")[0].split())]
    [[_, day]] = [words for words in lines if words[0] == "as-of"]
    return date.fromisoformat(day), [
        Advisory(package, fixed_in, date.fromisoformat(published), tuple(ids.split(",")))
        for package, fixed_in, published, ids in (words for words in lines if words[0] != "as-of")
    ]


def jar_pins(text: str) -> list[Pin]:
    """The pins of a jars.lock: each package once, with the sets that have it."""
    sets: dict[tuple[str, str], list[str]] = {}
    for name, artifacts in parse_lock(text).items():
        for artifact in artifacts:
            sets.setdefault((f"{artifact.group}:{artifact.name}", artifact.version), []).append(name)
    return [Pin(package, version, ", ".join(names)) for (package, version), names in sets.items()]


def python_pins(text: str, where: str) -> list[Pin]:
    """The pins of a requirements lock."""
    return [Pin(name, version, where) for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)]


def overdue(pins: Iterable[Pin], known: Iterable[Advisory], today: date) -> dict[Pin, tuple[Advisory, bool]]:
    """The pins with a published fix: the newest one, and whether any has waited for too long."""
    known = list(known)
    found = {}
    for pin in pins:
        hits = [advisory for advisory in known if advisory.concerns(pin)]
        if hits:
            newest = max(hits, key=lambda advisory: _order(advisory.fixed_in))
            found[pin] = newest, any(today - hit.published > GRACE for hit in hits)
    return found


def bundled(known: Iterable[Advisory]) -> Iterator[Pin]:
    """Known packages inside of other packages, as far as they lie on this machine; what is replaced is left out."""
    by_name = {advisory.package.partition(":")[2]: advisory.package for advisory in known if ":" in advisory.package}
    replaced = {artifact.name for artifact in parse_lock(_JARS.read_text(encoding="utf-8"))["spark"]}
    shipped = [(jar.name, "PySpark") for jar in pyspark_jars() if artifact_name(jar) not in replaced]
    shipped += [(name, "the registry's archive") for name in _names_in_the_registry()]
    for file, where in shipped:
        for name, package in by_name.items():
            if match := re.search(rf"(?:^|\.){re.escape(name)}-(\d[\w.]*)\.jar$", file):
                yield Pin(package, match[1], f"inside {where}")


def _names_in_the_registry() -> list[str]:
    for artifact in parse_lock(_JARS.read_text(encoding="utf-8"))["registry"]:
        file = JarCache(default_cache()).folder / artifact.file_name
        if file.is_file():
            with tarfile.open(file) as archive:
                return [Path(name).name for name in archive.getnames()]
    return []


def _order(version: str) -> Version:
    """`1.5.6-10` is a version of Java's, where the number after the dash counts too."""
    return Version(re.sub(r"[^0-9.].*", "", version.replace("-", ".")).strip(".") or "0")


def _pip_audit() -> str:
    """What pip-audit found, or why it could not look."""
    command = ["uv", "tool", "run", "--quiet", "pip-audit", "--progress-spinner", "off", "--disable-pip", "--no-deps",
               "--format", "json", "-r", str(_PYTHON[0])]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        packages = json.loads(done.stdout)["dependencies"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return f"could not run: {error}"
    unknown = sum("skip_reason" in package for package in packages)
    hits = [f"{p['name']} {p['version']}: {v['id']}" for p in packages for v in p.get("vulns", [])]
    if unknown == len(packages):
        return "its data cannot be reached from here: it judged no package"
    return f"{len(packages) - unknown} packages judged, {unknown} not; " + ("; ".join(hits) or "nothing found")


def main() -> int:
    """What was found is printed; 1 if anything pinned is overdue."""
    as_of, known = advisories(Path(__file__).with_name("advisories.txt").read_text(encoding="utf-8"))
    pins = jar_pins(_JARS.read_text(encoding="utf-8"))
    for file in _PYTHON:
        pins += python_pins(file.read_text(encoding="utf-8"), file.name)
    found = overdue(pins, known, date.today())
    print(f"{len(pins)} pins, {len(known)} advisories as of {as_of}")
    for pin, (advisory, late) in found.items():
        _say("overdue" if late else "new", pin, advisory)
    for pin, (advisory, _) in overdue(bundled(known), known, date.today()).items():
        _say("bundled", pin, advisory)
    print(f"pip-audit: {_pip_audit()}")
    return any(late for _, late in found.values())


def _say(kind: str, pin: Pin, advisory: Advisory) -> None:
    ids = ", ".join(advisory.ids)
    print(
        f"{kind:8} {pin.package} {pin.version} ({pin.where}): fixed in {advisory.fixed_in}, {advisory.published}, {ids}"
    )


if __name__ == "__main__":
    sys.exit(main())
