"""The jars: named by a checked-in lock, fetched once by Ivy, verified, shared by all projects of a user.

`jars.lock` lists every file with exact coordinates, SHA-256 and size, in sets ("kafka", ...). A set is complete
when each of its files lies in the cache and is the very file that was locked; then nothing is fetched and no
network is needed. What is missing or damaged is fetched by `ivy`, into a folder of its own, and moved into place only
after its checksum was right: a reader never sees half a jar.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from headrace.errors import SetupError
from headrace.home import open_private, write_private
from headrace.progress import SILENT, Progress
from headrace.runtime.java import Java


@dataclass(frozen=True)
class Artifact:
    """One locked file."""

    group: str
    name: str
    version: str
    classifier: str
    extension: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.extension}"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


@cache
def jar_lock() -> dict[str, tuple[Artifact, ...]]:
    """The sets of the checked-in lock, by name."""
    text = resources.files("headrace.runtime").joinpath("jars.lock").read_text(encoding="utf-8")
    return parse_lock(text)


def parse_lock(text: str) -> dict[str, tuple[Artifact, ...]]:
    """`[set]` headings, then a line per file: `group:name:version[:classifier:extension] sha256 size`."""
    sets: dict[str, list[Artifact]] = {}
    current: list[Artifact] = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0].startswith("["):
            current = sets.setdefault(words[0].strip("[]"), [])
            continue
        group, name, version, *rest = words[0].split(":")
        classifier, extension = rest if rest else ("", "jar")
        current.append(Artifact(group, name, version, classifier, extension, words[1], int(words[2])))
    return {name: tuple(files) for name, files in sets.items()}


def locked_version(name: str) -> str:
    """The locked version of the artifact `name`."""
    return next(a.version for artifacts in jar_lock().values() for a in artifacts if a.name == name)


def default_cache() -> Path:
    """The per-user cache, shared by all projects."""
    named = os.environ.get("HEADRACE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "headrace"


class JarCache:
    """The folder with the fetched jars."""

    def __init__(self, root: Path, *, ivy_settings: Path | None = None, progress: Progress = SILENT) -> None:
        self.root = root
        self.folder = root / "jars"
        self.ivy_settings = ivy_settings
        self.progress = progress

    def classpath(self, set_name: str, java: Java) -> list[Path]:
        """The files of the set, in the lock's order, complete and verified: fetched if they must be."""
        artifacts = jar_lock()[set_name]
        if self.missing(artifacts):
            self._complete(set_name, artifacts, java)
        return [self.folder / artifact.file_name for artifact in artifacts]

    def unpacked(self, set_name: str, java: Java) -> Path:
        """The folder with what the set's one archive holds, unpacked whole."""
        (archive,) = self.classpath(set_name, java)
        folder = self.root / "unpacked" / archive.name.removesuffix(".tar.gz")
        if folder.is_dir():
            return folder
        with self._locked():
            if not folder.is_dir():  # another process may have unpacked it while this one waited
                import tarfile

                self.progress.say(f"unpacking {archive.name}, once per user")
                folder.parent.mkdir(mode=0o700, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=folder.parent) as work, tarfile.open(archive) as packed:
                    packed.extractall(Path(work, "whole"), filter="data")
                    Path(work, "whole").replace(folder)
        return folder

    def missing(self, artifacts: Iterable[Artifact]) -> list[Artifact]:
        """Those that are not in the cache as locked. Cheap: a file is hashed only when it is new or changed."""
        verified = self._verified()
        missing: list[Artifact] = []
        for artifact in artifacts:
            stamp = _stamp(self.folder / artifact.file_name)
            if stamp is None or verified.get(artifact.file_name) != [artifact.sha256, *stamp]:
                missing.append(artifact)
        return missing

    def _verified(self) -> dict[str, list[object]]:
        try:
            document = json.loads((self.folder / "verified.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def _complete(self, set_name: str, artifacts: Sequence[Artifact], java: Java) -> None:
        with self._locked():
            wanted = self.missing(artifacts)  # another process may have fetched them while this one waited
            good = [a for a in wanted if _is_as_locked(self.folder / a.file_name, a)]
            absent = [a for a in wanted if a not in good]
            if absent:
                self._fetch(set_name, absent, java)
            self._remember(wanted)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = open_private(self.root / "jars.lock", "a")
        except OSError as error:
            raise SetupError(
                f"the jar cache {self.root} cannot be written",
                why=error.strerror or str(error),
                hint="set HEADRACE_CACHE to a folder that is yours",
            ) from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.progress.say("another headrace is fetching the jars: waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _remember(self, artifacts: Sequence[Artifact]) -> None:
        verified = self._verified()
        for artifact in artifacts:
            stamp = _stamp(self.folder / artifact.file_name)
            verified[artifact.file_name] = [artifact.sha256, *(stamp or ())]
        write_private(self.folder / "verified.json", json.dumps(verified, indent=1))

    def _fetch(self, set_name: str, artifacts: Sequence[Artifact], java: Java) -> None:
        from headrace.runtime import ivy  # heavy, and needed once per user

        for leftover in self.root.glob("fetch-*"):  # of a process that was killed: the lock is ours
            shutil.rmtree(leftover, ignore_errors=True)
        total = sum(a.size for a in artifacts)
        _require_disk(self.root, 2 * total)
        self.progress.say(f"fetching {len(artifacts)} files for {set_name} ({total / 1e6:.0f} MB), once per user")
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self.root) as name:
            work = Path(name)
            advance = self.progress.advance
            said = ivy.fetch(
                artifacts, work, java, self.ivy_settings, lambda arrived: advance(set_name, min(arrived, total), total)
            )
            advance(set_name, total, total)
            _verify(work / "out", artifacts, ivy.complaint(said))
            for artifact in artifacts:
                (work / "out" / artifact.file_name).replace(self.folder / artifact.file_name)


def _verify(folder: Path, artifacts: Sequence[Artifact], complaint: str) -> None:
    absent = [a for a in artifacts if not (folder / a.file_name).is_file()]
    if absent:
        raise SetupError(
            f"{len(absent)} of {len(artifacts)} files could not be fetched, {absent[0].coordinates} among them",
            why=complaint,
            hint="check the network; behind a mirror set runtime.ivy_settings (HEADRACE_IVY_SETTINGS) to an "
            "Ivy settings file, see docs/install.md",
        )
    for artifact in artifacts:
        path = folder / artifact.file_name
        if not _is_as_locked(path, artifact):
            raise SetupError(
                f"{artifact.file_name} is not the file that was locked: nothing was installed",
                why=f"expected SHA-256 {artifact.sha256} and {artifact.size} bytes, "
                f"got {_sha256(path)} and {path.stat().st_size}",
                hint="try again; if it fails again, the mirror or a proxy serves another file",
            )


def _require_disk(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise SetupError(
            f"not enough disk for the jars in {folder}",
            why=f"{wanted / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free",
            hint="make room, or set HEADRACE_CACHE to a folder on another disk",
        )


def _stamp(path: Path) -> list[int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _is_as_locked(path: Path, artifact: Artifact) -> bool:
    try:
        return path.stat().st_size == artifact.size and _sha256(path) == artifact.sha256
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
