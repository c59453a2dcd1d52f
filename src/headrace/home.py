"""Everything on disk of one cluster: the folder, its files, its lock.

    .headrace/
      cluster.json          what the cluster is: id, Kafka version, nodes, ports, settings
      lock                  held while a command changes the cluster
      broker-1/
        server.properties   the node's configuration, written again at every start
        process.json        pid and start time of the running process
        server.log          what the node says (rotated)
        data/               Kafka's own files: segments, indexes, the metadata log
      labs/                 results of labs, and the homes of the clusters that labs start
        lock                held by a run of labs for as long as it lives

All folders are 0700 and all files 0600: records are nobody else's business.
This module knows names and permissions; what the files mean is known by the rooms that write them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from headrace.errors import SetupError, UsageError

FOLDER = ".headrace"
FILE = "headrace.toml"


class Home:
    """The folder of one cluster."""

    def __init__(self, root: Path) -> None:
        # Absolute without resolving links: what the user named is what messages show.
        self.root = Path(os.path.abspath(root.expanduser()))  # noqa: PTH100

    def __repr__(self) -> str:
        return f"Home({str(self.root)!r})"

    @classmethod
    def find(cls, explicit: Path | str | None = None, start: Path | None = None) -> Home:
        """The home a command means: named, or `.headrace` of the nearest folder upwards, or here."""
        named = explicit or os.environ.get("HEADRACE_HOME")
        if named:
            return cls(Path(named))
        here = start or Path.cwd()
        for folder in (here, *here.parents):
            if (folder / FILE).is_file() or (folder / FOLDER).is_dir():
                return cls(folder / FOLDER)
        return cls(here / FOLDER)

    @property
    def config_file(self) -> Path:
        """Where this cluster's headrace.toml is, if there is one: inside a named home, else beside it."""
        inside = self.root / FILE
        return inside if inside.is_file() else self.root.parent / FILE

    @property
    def cluster_file(self) -> Path:
        return self.root / "cluster.json"

    @property
    def labs(self) -> Path:
        """Where labs keep their files and results."""
        return self.root / "labs"

    def node(self, name: str) -> Path:
        return self.root / node_folder(name)

    def create(self) -> None:
        """The folder exists, is ours alone, and can be written."""
        if "," in str(self.root):
            raise UsageError(
                f"the home folder {str(self.root)!r} has a comma in its name",
                why="Kafka separates log directories with commas",
                hint="headrace --home with a folder whose path has none",
            )
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise SetupError(
                f"the home folder {self.root} cannot be written",
                why=error.strerror or str(error),
                hint="headrace --home DIR with a folder that is yours, or fix its permissions",
            ) from error

    @contextmanager
    def lock(self, doing: str) -> Iterator[None]:
        """No other command changes this cluster while the block runs."""
        handle = self._open_lock()
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SetupError(
                    f"another headrace command is running on {self.root}",
                    why=self.holder() or "it holds the lock",
                    hint="wait until it has ended, then repeat the command",
                ) from None
            # Who holds it is a courtesy: on a full disk it cannot be written, and `down` is what frees room there.
            with suppress(OSError):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"`headrace {doing}` runs as pid {os.getpid()}\n".encode(), 0)
            try:
                yield
            finally:
                with suppress(OSError):
                    os.ftruncate(handle, 0)
        finally:
            os.close(handle)

    def _open_lock(self) -> int:
        """The lock file; on a disk without room for one, the folder itself can be locked as well."""
        try:
            return os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                return os.open(self.root, os.O_RDONLY)
            raise

    def holder(self) -> str | None:
        """Which command holds the lock right now, in words."""
        try:
            with (self.root / "lock").open(encoding="utf-8") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return (self.root / "lock").read_text(encoding="utf-8").strip() or "another headrace command"
        except OSError:
            return None
        return None


def node_folder(name: str) -> str:
    """What the folder of a node is called. `spark` is the folder of the JVMs that commands start for themselves."""
    return "warm-spark" if name == "spark" else name


def open_private(path: Path, mode: str) -> IO[Any]:
    """The opened file; if this made it, only its owner may read it."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def write_private(path: Path, text: str, *, durable: bool = True) -> None:
    """`path` holds `text`, whole or not at all, readable by its owner alone.

    What is written again at every start need not be durable: to wait for the disk costs milliseconds a file.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_for_good(path: Path) -> None:
    """The file is gone, also after a power cut."""
    if not path.exists():
        return
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, document: Mapping[str, object], *, durable: bool = True) -> None:
    write_private(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n", durable=durable)


def read_json(path: Path, hint: str | None = None) -> dict[str, Any] | None:
    """The document, or None if there is no such file. A damaged file is an error (with `hint`), never a guess."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise SetupError(f"{path} cannot be read", why=str(error), hint=hint) from error
    if not isinstance(document, dict):
        raise SetupError(f"{path} is damaged", why="it does not hold a JSON object", hint=hint)
    return document


def size_bytes(folder: Path) -> int:
    """Bytes that the files below `folder` take on disk; files that vanish meanwhile count as nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                # Blocks, not length: Kafka preallocates sparse index files of 10 MB each.
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118
            except OSError:
                continue
    return total
