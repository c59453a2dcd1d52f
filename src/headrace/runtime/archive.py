"""Class archives (AppCDS): a JVM that maps its classes instead of parsing them starts three times sooner.

The first start of a kind of process has no archive: it writes down which classes it loads. When the cluster is
ready, a niced process in the background turns that list into an archive in the user's cache; every later start maps it.
An archive fits one Java and one class path exactly, so both are part of its name: another Java or other jars simply
find no archive, make their own, and the oldest ones are removed. Beside each archive lies the list it was made of: if
that lacks classes that matter, because the first process did little, the archive is used until a better list is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.home import open_private
from headrace.runtime.java import Java
from headrace.runtime.process import MARKER, Supervised, plain_environment

_KEPT_PER_KIND = 3
# Java must neither stop nor talk about an archive it cannot use.
_QUIET = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
# Only G1 can write objects (the module graph, class mirrors) into an archive; the serial collector can read them.
_DUMP = ("-Xshare:dump", "-XX:+UseG1GC", "-Xlog:disable")


class ClassArchive:
    """The archive of one kind of process ("kafka") for one Java and one class path.

    `telling` names classes (`org/example/Main`) by which the list of a process that did all its work is known.
    """

    def __init__(
        self, cache: Path, kind: str, java: Java, classpath: Sequence[Path], telling: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.java = java
        self.telling = telling
        self.classpath = os.pathsep.join(str(jar) for jar in classpath)
        identity = f"{java.home}\n{java.version}\n{self._java_stamp()}\n{self.classpath}\n{_DUMP}"
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self.file = cache / "archives" / f"{kind}-{digest}.jsa"

    def _java_stamp(self) -> int:
        try:
            return (self.java.home / "lib" / "modules").stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def exists(self) -> bool:
        return self.file.is_file()

    @property
    def whole(self) -> bool:
        """True if there is nothing to be learnt: the archive was made of a list with the telling classes."""
        return self.exists and _tells(self.file.with_suffix(".lst"), self.telling)

    def jvm_flags(self, class_list: Path) -> list[str]:
        """Flags that use the archive, and write down the loaded classes unless it is whole."""
        flags: list[str] = []
        if not self.whole:
            class_list.unlink(missing_ok=True)
            flags = [f"-XX:DumpLoadedClassList={class_list}", "-Xlog:cds=off"]
        if self.exists:
            os.utime(self.file)
            flags += [f"-XX:SharedArchiveFile={self.file}", *_QUIET]
        return flags

    def would_gain_from(self, class_list: Path) -> bool:
        """True if there is no archive yet, or if this list is the better one that it waits for."""
        if not class_list.is_file():
            return False
        return not self.exists or (not self.whole and _tells(class_list, self.telling))

    def build_in_background(self, class_list: Path, folder: Path) -> bool:
        """A process that makes the archive was started in `folder`; False if there is nothing to do."""
        builder = Supervised(folder)
        if not self.would_gain_from(class_list) or builder.find():
            return False
        folder.mkdir(mode=0o700, exist_ok=True)
        argv = [
            sys.executable, "-m", "headrace.runtime.archive",
            str(self.java.executable), self.classpath, str(class_list), str(self.file), ",".join(self.telling),
            builder.marker,
        ]  # fmt: skip
        builder.spawn(argv, output=folder / "archive.log", environment=plain_environment(), nice=15)
        return True


def _tells(class_list: Path, telling: Sequence[str]) -> bool:
    if not telling:
        return True
    try:
        text = class_list.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return all(re.search(rf"^{re.escape(name)}( |$)", text, re.MULTILINE) for name in telling)


def build(java: str, classpath: str, class_list: Path, archive: Path, telling: Sequence[str] = ()) -> int:
    """The archive holds the classes of the list; older ones of its kind are removed. The exit code of Java's dump."""
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_private(archive.parent / "lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # one builder at a time: two would take twice the cores for one archive
        for leftover in archive.parent.glob("build-*"):  # of a builder that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        known = archive.with_suffix(".lst")
        if archive.is_file() and _tells(known, telling):  # another has made it while this one waited
            return 0
        before = _lines(known) if known.is_file() else {}
        return _dump(java, classpath, [*{**before, **_lines(class_list)}], archive)


def _lines(class_list: Path) -> dict[str, None]:
    """The lines of a list in their order, without the numbers that hold within one list only."""
    # The recording process may still be writing: its last line may be half a name. A class with a source is one that
    # was made at run time, or loaded by another loader than Java's own: such classes cannot be archived.
    whole = class_list.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0].splitlines()
    return {line.partition(" id: ")[0]: None for line in whole if " source: " not in line}


def _dump(java: str, classpath: str, lines: Sequence[str], archive: Path) -> int:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="build-") as work:
        complete = Path(work, "classes.lst")
        complete.write_text("\n".join(lines) + "\n", encoding="utf-8")
        made = Path(work, archive.name)
        command = [
            java, *_DUMP, f"-XX:SharedClassListFile={complete}", f"-XX:SharedArchiveFile={made}", "-cp", classpath,
        ]  # fmt: skip
        code = subprocess.run(command, check=False, env=plain_environment()).returncode
        if code == 0 and made.is_file():
            made.replace(archive)
            complete.replace(archive.with_suffix(".lst"))
            _remove_old(archive)
    return code


def _remove_old(archive: Path) -> None:
    kind = archive.name.rsplit("-", 1)[0]
    newest_first = sorted(archive.parent.glob(f"{kind}-*.jsa"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in newest_first[_KEPT_PER_KIND:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".lst").unlink(missing_ok=True)


if __name__ == "__main__":
    *arguments, marker = sys.argv[1:]
    if len(arguments) != 5 or not marker.startswith(MARKER):
        sys.exit("usage: python -m headrace.runtime.archive JAVA CLASSPATH CLASS_LIST ARCHIVE TELLING MARKER")
    java, classpath, class_list, archive, telling = arguments
    code = build(java, classpath, Path(class_list), Path(archive), telling.split(",") if telling else ())
    Supervised(Path(marker.removeprefix(MARKER))).forget()
    sys.exit(code)
