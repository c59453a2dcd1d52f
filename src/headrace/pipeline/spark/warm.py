"""A JVM of Spark that is kept ready by `headrace up --with spark`, from the side of the Python process that uses it.

A JVM has compiled what it ran: a session in one that has run pipelines before is there in a second, and its first
batch is as fast as a late one. Each Python process makes a Spark context of its own there and stops it at its end, so
that nothing of it is left: neither settings nor views. What only a new JVM can have (`settings_of_jvm`, another Spark,
other environment variables for Java) gets a JVM of its own, as does who comes while another process uses this one.

    address.json   where the JVM listens, what it fits, and whether it has been warmed up
    lock           held by the process that uses the JVM, for as long as it lives
    in-use         there until that process has stopped all that it began: who finds it without its owner ends the JVM
    jvm/           the JVM's own folder, see `session`
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace.home import open_private, read_json, write_json
from headrace.pipeline.spark.session import FOREIGN, Jvm, SessionSpec, settings_of_jvm
from headrace.runtime import Supervised, plain_environment, pyspark_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a JVM that many use one after the other may still hold when nobody does: of its memory, and threads. Spark leaves
# a thread behind for each context that has used Python workers.
_MOST_HELD, _MOST_THREADS = 0.3, 500
# PySpark sets the latter for its own workers.
_READ_BY_JAVA, _OF_PYSPARK = ("SPARK_", "HADOOP_", "JAVA_", "TZ"), ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")


class WarmFolder:
    """The folder of a JVM that is kept ready, see above."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jvm = Supervised(root / "jvm")
        self._address = root / "address.json"
        self._in_use = root / "in-use"

    @property
    def address(self) -> Mapping[str, Any]:
        """Empty if there is no JVM."""
        with suppress(SetupError):
            return read_json(self._address) or {}
        return {}

    def publish(self, port: int, secret: str, fits: str, *, warm: bool) -> None:
        document = {"port": port, "secret": secret, "fits": fits, "warm": warm}
        write_json(self._address, document, durable=False)

    def retract(self) -> None:
        self._address.unlink(missing_ok=True)

    def take(self) -> IO[Any] | None:
        """The lock; None if another process has it."""
        lock = open_private(self.root / "lock", "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        return lock

    def begin(self) -> None:
        """Said by the owner of the lock, before it does anything in the JVM."""
        self._in_use.touch(mode=0o600)

    def end(self) -> None:
        """Said by the owner of the lock, when nothing that it began goes on in the JVM."""
        self._in_use.unlink(missing_ok=True)

    def end_abandoned(self) -> bool:
        """True if the JVM had to be ended: a process that used it was killed, and its queries would write on."""
        lock = self.take() if self._in_use.exists() else None
        if lock is None:
            return False
        with lock:
            return self._end_jvm()

    def _end_jvm(self) -> bool:
        """Of the owner of the lock: True if the JVM was left with something going on in it."""
        if not self._in_use.exists():
            return False
        self.retract()
        self.jvm.kill()
        self.end()
        return True

    def attach(self, fits: str) -> tuple[IO[Any], Mapping[str, Any]] | str:
        """The lock and the JVM's address, or why not."""
        lock = self.take()
        if lock is None:
            return "is in use"
        self._end_jvm()
        address = self.address if self.jvm.find() else {}
        if address.get("fits") == fits:
            return lock, address
        lock.close()
        return "was started with other settings" if address else "is not ready"


def attach(spec: SessionSpec) -> WarmJvm | None:
    """The JVM that is kept ready; None if there is none that is free and fits."""
    if spec.warm is None or not spec.warm.is_dir():
        return None
    folder = WarmFolder(spec.warm)
    folder.end_abandoned()
    if not folder.address:
        return None
    own = settings_of_jvm(spec.conf) or ([] if spec.is_local else [spec.master])
    found = f"cannot have {own[0]}" if own else folder.attach(fitting(spec))
    if isinstance(found, str):
        spec.progress.say(f"the Spark that is kept ready {found}: another one is started")
        return None
    return WarmJvm(spec, folder, *found)


def fitting(spec: SessionSpec) -> str:
    """Two sessions that say the same here can be in one JVM, apart from the settings that they are given."""
    java = {
        name: value
        for name, value in plain_environment().items()
        if name.startswith(_READ_BY_JAVA) and name not in {*_OF_PYSPARK, *FOREIGN}
    }
    parts = [version("pyspark"), *map(str, (pyspark_folder(), spec.java_home, spec.cache)), java]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class WarmJvm(Jvm):
    """The JVM, while this process uses it."""

    def __init__(self, spec: SessionSpec, folder: WarmFolder, lock: IO[Any], address: Mapping[str, Any]) -> None:
        own = folder.jvm.folder
        super().__init__(replace(spec, conf={**spec.conf, "spark.local.dir": str(own / "local")}))
        self.kept = folder
        self.address = address
        self.lock = lock
        self.process = folder.jvm
        self.log, self.output = own / "spark.log", own / "output.log"
        self.logged_before = self.log.stat().st_size if self.log.exists() else 0

    def start(self) -> SparkSession:
        from headrace.pipeline.spark import internals

        self.kept.begin()
        self.gateway = internals.connect_gateway(self.address["port"], self.address["secret"])
        internals.renew_gateway(self.gateway)
        internals.set_java_properties(self.gateway, self.conf)
        self.session = self._open()
        # Python workers are children of the JVM; they get what they would have inherited.
        self.session.sparkContext.environment.update(self._environment(self.folder / "gateway"))
        return self.session

    def stop(self) -> None:
        """The session is stopped. The JVM goes on, unless something of this process may go on in it."""
        try:
            if not self._leave():
                self.kept.retract()
                self.process.kill()
            self.kept.end()
        finally:
            assert self.lock is not None
            self.lock.close()

    def _leave(self) -> bool:
        """True if the session has stopped in good order, and the JVM holds little enough for the next one."""
        from headrace.pipeline.spark import internals

        session, self.session = self.session, None
        # Who is interrupted may leave a command behind that Java still carries out.
        interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        with suppress(Exception):
            if session is not None and not interrupted and not session.streams.active:
                session.stop()
                held, threads = internals.leave_gateway(self.gateway)
                return held < _MOST_HELD and threads < _MOST_THREADS
        if self.gateway is not None:
            internals.disconnect_gateway(self.gateway)
        return False
