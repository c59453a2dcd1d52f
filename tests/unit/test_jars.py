"""The jar cache, against a mirror that each test makes of one small locked file."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

import psutil
import pytest

from headrace.errors import SetupError
from headrace.runtime.jars import Artifact, JarCache, default_cache, jar_lock, parse_lock
from headrace.runtime.java import Java, find_java
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace


@pytest.fixture(scope="session")
def java() -> Java:
    return find_java()


@pytest.fixture(scope="session")
def jar(java: Java) -> Path:
    """The one file of the set "tools", really fetched, once per user."""
    [path] = JarCache(default_cache()).classpath("tools", java)
    return path


@pytest.fixture
def locked() -> Artifact:
    [artifact] = jar_lock()["tools"]
    return artifact


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@dataclass
class Mirror:
    """A Maven repository in a folder, and the Ivy settings that name it."""

    settings: Path
    file: Path

    def points_at(self, root: str) -> None:
        self.settings.write_text(
            f"""<ivysettings><settings defaultResolver="mirror"/><resolvers>
            <ibiblio name="mirror" m2compatible="true" usepoms="false" useMavenMetadata="false" checksums=""
                     root="{root}"/></resolvers></ivysettings>""",
            encoding="utf-8",
        )


@pytest.fixture
def mirror(tmp_path: Path, jar: Path, locked: Artifact) -> Mirror:
    root = tmp_path / "mirror"
    file = root.joinpath(*locked.group.split("."), locked.name, locked.version, locked.file_name)
    file.parent.mkdir(parents=True)
    shutil.copyfile(jar, file)
    made = Mirror(tmp_path / "ivysettings.xml", file)
    made.points_at(root.as_uri() + "/")
    return made


@dataclass
class Words:
    """A Progress that remembers what it was told."""

    said: list[str] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def advance(self, label: str, done: int, total: int) -> None:  # noqa: ARG002 - the signature of Progress
        self.shares.append(done / total)


def jars_of(cache: Path, mirror: Mirror, words: Words | None = None) -> JarCache:
    return JarCache(cache, ivy_settings=mirror.settings, progress=words or Words())


def installed(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "jars").glob("*.jar"))


def test_the_lock_is_whole() -> None:
    sets = jar_lock()
    assert {"kafka", "tools"} <= set(sets)
    artifacts = [artifact for each in sets.values() for artifact in each]
    for artifact in artifacts:
        assert len(bytes.fromhex(artifact.sha256)) == 32
        assert artifact.size > 0
    for name, each in sets.items():
        twice = [file for file, count in Counter(a.file_name for a in each).items() if count > 1]
        assert not twice, f"{name} has two files called {twice}"


def test_the_lock_names_no_host() -> None:
    text = resources.files("headrace.runtime").joinpath("jars.lock").read_text(encoding="utf-8")
    assert "//" not in text


def test_a_lock_line_may_have_a_classifier() -> None:
    [artifact] = parse_lock(f"[one]\n# words\ng.h:app:1.2:all:tar.gz {'0' * 64} 7  # more words\n")["one"]
    assert artifact.file_name == "app-1.2-all.tar.gz"
    assert artifact.coordinates == "g.h:app:1.2"


def test_a_mirror_fills_the_cache_once_and_then_nothing_is_fetched(cache: Path, mirror: Mirror, java: Java) -> None:
    words = Words()
    [path] = jars_of(cache, mirror, words).classpath("tools", java)
    assert path.read_bytes() == mirror.file.read_bytes()
    assert words.said == ["fetching 1 files for tools (1 MB), once per user"]
    assert words.shares[-1] == 1.0

    mirror.points_at("http://127.0.0.1:1/")
    offline = Words()
    assert jars_of(cache, mirror, offline).classpath("tools", java) == [path]
    assert offline.said == []


@pytest.mark.parametrize("damage", ["changed", "truncated", "removed"])
def test_a_damaged_jar_is_noticed_and_repaired(cache: Path, mirror: Mirror, java: Java, damage: str) -> None:
    [path] = jars_of(cache, mirror).classpath("tools", java)
    whole = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(b"\0" * len(whole) if damage == "changed" else whole[:1000])
    assert jars_of(cache, mirror).missing(jar_lock()["tools"])
    jars_of(cache, mirror).classpath("tools", java)
    assert path.read_bytes() == whole


def test_a_good_jar_whose_record_is_lost_is_verified_not_fetched(cache: Path, mirror: Mirror, java: Java) -> None:
    jars_of(cache, mirror).classpath("tools", java)
    (cache / "jars" / "verified.json").write_text("garbage", encoding="utf-8")
    words = Words()
    jars_of(cache, mirror, words).classpath("tools", java)
    assert words.said == []
    assert not jars_of(cache, mirror).missing(jar_lock()["tools"])


def test_a_wrong_checksum_installs_nothing(cache: Path, mirror: Mirror, java: Java, locked: Artifact) -> None:
    mirror.file.write_bytes(b"another file")
    with pytest.raises(SetupError, match=r"kafka-tools-.*\.jar is not the file that was locked") as raised:
        jars_of(cache, mirror).classpath("tools", java)
    assert f"expected SHA-256 {locked.sha256} and {locked.size} bytes, got " in str(raised.value.why)
    assert " and 12" in str(raised.value.why)
    assert installed(cache) == []
    assert list(cache.glob("fetch-*")) == []


def test_a_file_that_the_mirror_lacks_is_an_error(cache: Path, mirror: Mirror, java: Java) -> None:
    mirror.file.unlink()
    with pytest.raises(
        SetupError, match=r"1 of 1 files could not be fetched, org\.apache\.kafka:kafka-tools:"
    ) as raised:
        jars_of(cache, mirror).classpath("tools", java)
    assert "not found" in str(raised.value.why)


def test_no_network_and_an_empty_cache(cache: Path, mirror: Mirror, run: Headrace) -> None:
    mirror.points_at("http://127.0.0.1:1/")
    done = run("up", env={"HEADRACE_CACHE": str(cache), "HEADRACE_IVY_SETTINGS": str(mirror.settings)})
    assert done.code == 3
    assert f"error: {len(jar_lock()['kafka'])} of {len(jar_lock()['kafka'])} files could not be fetched" in done.err
    assert "why: ConnectException: Connection refused" in done.err
    assert "try: check the network; behind a mirror set runtime.ivy_settings" in done.err
    assert installed(cache) == []


def test_a_settings_file_that_is_not_there(cache: Path, tmp_path: Path, run: Headrace) -> None:
    missing = tmp_path / "missing.xml"
    done = run("up", env={"HEADRACE_CACHE": str(cache), "HEADRACE_IVY_SETTINGS": str(missing)})
    assert done.code == 3
    assert f"error: the Ivy settings file {missing} does not exist" in done.err


def test_a_cache_that_cannot_be_written(tmp_path: Path, run: Headrace) -> None:
    (tmp_path / "file").touch()
    done = run("up", env={"HEADRACE_CACHE": str(tmp_path / "file" / "cache")})
    assert done.code == 3
    assert f"error: the jar cache {tmp_path / 'file' / 'cache'} cannot be written" in done.err
    assert "try: set HEADRACE_CACHE" in done.err


_FETCH = """
import sys
from pathlib import Path
from headrace.cli.output import TerminalProgress
from headrace.runtime.jars import JarCache
from headrace.runtime.java import find_java
cache, settings = map(Path, sys.argv[1:])
print(JarCache(cache, ivy_settings=settings, progress=TerminalProgress()).classpath("tools", find_java())[0])
"""


def test_two_at_once_do_not_disturb_each_other(cache: Path, mirror: Mirror, tmp_path: Path) -> None:
    cache.mkdir()
    words = [tmp_path / "first.err", tmp_path / "second.err"]
    with (cache / "jars.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        both = [_fetching(cache, mirror, error) for error in words]
        eventually(lambda: all("waiting for it" in error.read_text(encoding="utf-8") for error in words), 30)
    answers = [process.communicate(timeout=60)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert answers == [str(cache / "jars" / mirror.file.name)] * 2
    assert (
        sum(error.read_text(encoding="utf-8").count("fetching") for error in words) == 2 + 1
    )  # 2 waited for "fetching"


def _fetching(cache: Path, mirror: Mirror, error: Path) -> subprocess.Popen[str]:
    with error.open("w") as err:
        return subprocess.Popen(
            [sys.executable, "-c", _FETCH, str(cache), str(mirror.settings)],
            stdout=subprocess.PIPE, stderr=err, text=True,
        )  # fmt: skip


class _HalfAFile(BaseHTTPRequestHandler):
    """Promises a whole file, sends half of it, and then closes the line or keeps it open."""

    content = b""
    go_on = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content[: len(self.content) // 2])
        self.wfile.flush()
        self.go_on.wait(60)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Nothing is said."""


@pytest.fixture
def half(mirror: Mirror) -> Iterator[type[_HalfAFile]]:
    """The mirror is a server that never sends the second half."""

    class Handler(_HalfAFile):
        content = mirror.file.read_bytes()
        go_on = threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        mirror.points_at(f"http://127.0.0.1:{server.server_port}/")
        yield Handler
        Handler.go_on.set()
        server.shutdown()
        serving.join()


def test_a_broken_download_is_noticed(cache: Path, mirror: Mirror, java: Java, half: type[_HalfAFile]) -> None:
    half.go_on.set()
    with pytest.raises(SetupError, match=r"could not be fetched|is not the file that was locked"):
        jars_of(cache, mirror).classpath("tools", java)
    assert installed(cache) == []
    assert list(cache.glob("fetch-*")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_fetch_is_repaired(
    cache: Path, mirror: Mirror, java: Java, half: type[_HalfAFile], tmp_path: Path, number: signal.Signals
) -> None:
    process = _fetching(cache, mirror, tmp_path / "err")

    def half_arrived() -> bool:
        return any(path.stat().st_size for path in cache.glob("fetch-*/cache/**/*.part") if path.is_file())

    eventually(half_arrived, 60)
    [ivy] = psutil.Process(process.pid).children()
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    eventually(lambda: not ivy.is_running() or ivy.status() == psutil.STATUS_ZOMBIE, 10)
    leftovers = list(cache.glob("fetch-*"))
    assert bool(leftovers) == (number != signal.SIGINT)
    assert installed(cache) == []

    half.go_on.set()
    mirror.points_at((tmp_path / "mirror").as_uri() + "/")
    jars_of(cache, mirror).classpath("tools", java)
    assert installed(cache) == [mirror.file.name]
    assert list(cache.glob("fetch-*")) == []
