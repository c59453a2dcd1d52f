"""The services beside the brokers: schema registry, Connect worker and console, each a process with care of its own.

All bind loopback only; the console elsewhere too, if it is told to and has a password. Registry and Connect stand
behind a proxy that checks every request (see `proxy`): their own ports answer to a secret that only the proxy can read.
The registry keeps its schemas in an H2 file in its folder, or in Kafka if asked for; its process is Apicurio's. The
Connect worker is Kafka's own, distributed mode, on a plugin path of ours to which the user can add a folder.
"""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import shutil
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.cluster.launch import Launch
from headrace.cluster.node import NodeProcess, java_properties
from headrace.cluster.proxy import Route
from headrace.cluster.spec import ClusterSpec, ServiceSpec
from headrace.errors import ConfigError, Unreachable
from headrace.home import Home, read_json, remove_for_good, size_bytes, write_private
from headrace.runtime import NotYet, Supervised, eventually, plain_environment

_CCOMPAT = "/apis/ccompat/v7"
_BASIC_AUTH = "org.apache.kafka.connect.rest.basic.auth.extension"
_JAAS = f'KafkaConnect {{ {_BASIC_AUTH}.PropertyFileLoginModule required file="passwords.properties"; }};\n'
_SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")


class Service(NodeProcess, ABC):
    """A process beside the brokers, with an address of its own."""

    def __init__(self, home: Home, spec: ClusterSpec, service: ServiceSpec) -> None:
        super().__init__(home, service.name)
        self.spec = spec
        self.service = service

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service.port}"

    @property
    def awaited(self) -> str:
        """What a start that takes long waits for."""
        return f"nothing answers at {self.url} yet"

    @property
    def data_bytes(self) -> int:
        return size_bytes(self.folder / "data")

    @property
    def needs_kafka(self) -> bool:
        """False if it can start before the brokers answer."""
        return True

    @property
    @abstractmethod
    def roles(self) -> str:
        """What `status` shows."""

    @abstractmethod
    def spawn(self, launch: Launch) -> None:
        """The process was started; whether it gets ready is another question."""

    @abstractmethod
    def ready(self) -> bool:
        """True when it answers."""

    def complete(self) -> None:
        """What runs for the sake of the running process runs too."""

    def build_archive(self, launch: Launch) -> None:
        """Make the next start faster, if there is anything to be made."""


class ProxiedService(Service, ABC):
    """A service whose address is that of a proxy; its own port answers to the proxy alone."""

    def __init__(self, home: Home, spec: ClusterSpec, service: ServiceSpec) -> None:
        super().__init__(home, spec, service)
        self.proxy = Supervised(home.node(f"{self.name}-front"))
        # What the proxy says to the service: the value of an Authorization header, new at each start.
        self.credentials = self.folder / "credentials"

    @abstractmethod
    def route(self) -> Route:
        """What the proxy is to do."""

    def complete(self) -> None:
        """The address answers, also while the service behind it does not."""
        if self.proxy.find():
            return
        self.proxy.folder.mkdir(mode=0o700, exist_ok=True)
        route = json.dumps(asdict(self.route()))
        argv = [sys.executable, "-m", "headrace.cluster.proxy", route, self.proxy.marker]
        self.proxy.spawn(argv, output=self.proxy.folder / "output.log", environment=plain_environment())

    def has_ended(self) -> None:
        super().has_ended()
        self.proxy.kill()
        self.proxy.forget()


class Registry(ProxiedService):
    """Apicurio behind Confluent's API.

    If it is killed while it makes its database for the first time, it cannot use what it has made. So a file says that
    the database is unfinished until the registry has answered once; the next start sets an unfinished one aside.
    """

    roles = "schema registry"

    def __init__(self, home: Home, spec: ClusterSpec, service: ServiceSpec) -> None:
        super().__init__(home, spec, service)
        self.data = self.folder / "data"
        self.unfinished = self.folder / "unfinished"

    @property
    def needs_kafka(self) -> bool:
        return self.service.storage == "kafka"

    def spawn(self, launch: Launch) -> None:
        self.write_folder()
        self._prepare_data()
        self.output.unlink(missing_ok=True)
        application = launch.jars.unpacked("registry", launch.java)
        argv = [
            str(launch.java.executable), "-Xms64m", "-Xmx512m", *_SMALL_JVM, self.process.marker,
            *self.own_flags(), *(f"-D{name}={value}" for name, value in self._settings().items()),
            "-jar", str(application / "quarkus-run.jar"),
        ]  # fmt: skip
        self.process.spawn(argv, output=self.output, environment=plain_environment())
        self.complete()

    def route(self) -> Route:
        port, inner = self.service.port, self.service.inner_port
        unfinished = str(self.unfinished)
        return Route(self.name, port, inner, str(self.credentials), prefix=_CCOMPAT, unfinished=unfinished)

    def _prepare_data(self) -> None:
        if self.unfinished.exists() and self.data.exists():
            aside = self.data.with_name("data-unfinished")
            shutil.rmtree(aside, ignore_errors=True)
            self.data.rename(aside)
        self.data.mkdir(mode=0o700, exist_ok=True)
        if not any(self.data.iterdir()):
            self.unfinished.touch()

    def _settings(self) -> Mapping[str, str]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.service.inner_port),
            # Whoever knows no token signed with our key gets a 401 for every path.
            "quarkus.oidc.tenant-enabled": "true",
            "quarkus.oidc.public-key": self._new_credentials(),
            "quarkus.http.auth.permission.all.paths": "/*",
            "quarkus.http.auth.permission.all.policy": "authenticated",
            # Its management interface listens on every address unless it is told not to. It cannot be switched off
            # after Apicurio was built: a request line of at most one byte lets it refuse every request.
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": "0",
            "quarkus.management.limits.max-initial-line-length": "1",
            "quarkus.log.console.enable": "false",
            "quarkus.log.file.enable": "true",
            "quarkus.log.file.path": str(self.log),
            "quarkus.log.file.rotation.max-file-size": "10M",
            "quarkus.log.file.rotation.max-backup-index": "3",
            "quarkus.http.access-log.enabled": "false",
            # Apicurio's own default is none: an incompatible change would pass.
            "apicurio.rules.global.compatibility": "BACKWARD",
            "apicurio.rest.deletion.artifact.enabled": "true",
            "apicurio.rest.deletion.artifact-version.enabled": "true",
        }
        if self.service.storage == "kafka":
            return settings | {
                "apicurio.storage.kind": "kafkasql",
                "apicurio.kafkasql.bootstrap.servers": self.spec.bootstrap,
                "apicurio.kafkasql.topic": "__headrace_registry",
                "apicurio.kafkasql.snapshots.topic": "__headrace_registry_snapshots",
                "apicurio.events.kafka.topic": "__headrace_registry_events",
            }
        return settings | {
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
            # Without the delay of half a second in which H2 may lose what it has acknowledged, if it is killed.
            "apicurio.datasource.url": f"jdbc:h2:file:{self.data / 'registry'};WRITE_DELAY=0",
        }

    def _new_credentials(self) -> str:
        """The public half of a new key; the proxy's file holds a token that was signed with the other half."""
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import padding, rsa

        key = rsa.generate_private_key(65537, 2048)
        now = int(time.time())
        # Valid from yesterday on, for longer than any registry runs: clocks are set back.
        claims = {"sub": "headrace", "iat": now - 86_400, "exp": now + 100 * 365 * 86_400}
        signed = b".".join(_base64url(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
        signature = _base64url(key.sign(signed, padding.PKCS1v15(), hashes.SHA256()))
        write_private(self.credentials, f"Bearer {signed.decode()}.{signature.decode()}", durable=False)
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return base64.b64encode(public).decode()

    def ready(self) -> bool:
        if not (answers(self.service.port, "/subjects") and answers(self.service.port, "/config")):
            return False
        # The proxy has done this, unless it is one of an earlier version that went on running.
        remove_for_good(self.unfinished)
        return True


#: The connectors that can be installed, by the name of their set in the lock file.
CONNECTORS = {"postgres": "connector-postgres"}


class Connect(ProxiedService):
    """Kafka's own Connect worker."""

    roles = "connect worker"

    def __init__(self, home: Home, spec: ClusterSpec, service: ServiceSpec) -> None:
        super().__init__(home, spec, service)
        self.token_file = self.folder / "token"

    @property
    def token(self) -> str:
        """What a client has to send."""
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            raise Unreachable("the Connect worker has no token", why="it was removed", hint="headrace up") from None

    def make_token(self) -> None:
        """There is a token, readable by the owner of the home alone. It is made once."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not self.token_file.exists():
            write_private(self.token_file, secrets.token_urlsafe(32))

    def route(self) -> Route:
        folders = (*self._folders(), str(self.home.labs))
        port, inner = self.service.port, self.service.inner_port
        return Route(
            self.name, port, inner, str(self.credentials), "", str(self.token_file), folders, str(self.home.root)
        )

    def _folders(self) -> Sequence[str]:
        """The folders whose files connectors may read and write."""
        return self.service.files or (str(self.home.root.parent),)

    def spawn(self, launch: Launch) -> None:
        self.write_folder()
        self.output.unlink(missing_ok=True)
        write_private(self.settings_file, java_properties(self._settings(launch)), durable=False)
        self._new_credentials()
        archive = launch.connect
        argv = [
            str(launch.java.executable), "-Xms64m", "-Xmx384m", *_SMALL_JVM, *archive.jvm_flags(self.class_list),
            self.process.marker, *self.own_flags(), "-Djava.security.auth.login.config=jaas.conf",
            # A connector's settings could otherwise name a class that reads any file into other settings.
            "-Dorg.apache.kafka.automatic.config.providers=none",
            "-cp", archive.classpath, "org.apache.kafka.connect.cli.ConnectDistributed", "server.properties",
        ]  # fmt: skip
        self.process.spawn(argv, output=self.output, environment=plain_environment())
        self.complete()

    def _new_credentials(self) -> None:
        """The worker and the proxy share a password that was never used before; clients have their token."""
        password = secrets.token_urlsafe(32)
        write_private(self.folder / "passwords.properties", f"headrace={password}\n", durable=False)
        write_private(self.folder / "jaas.conf", _JAAS, durable=False)
        basic = base64.b64encode(f"headrace:{password}".encode()).decode()
        write_private(self.credentials, f"Basic {basic}", durable=False)
        self.make_token()

    def _settings(self, launch: Launch) -> Mapping[str, str]:
        replication = str(min(3, len(self.spec.brokers)))
        json = "org.apache.kafka.connect.json.JsonConverter"
        return {
            "bootstrap.servers": self.spec.bootstrap,
            "group.id": "headrace-connect",
            "key.converter": json,
            "value.converter": json,
            "offset.storage.topic": "__connect_offsets",
            "offset.storage.partitions": "5",
            "offset.storage.replication.factor": replication,
            "config.storage.topic": "__connect_configs",
            "config.storage.replication.factor": replication,
            "status.storage.topic": "__connect_status",
            "status.storage.partitions": "3",
            "status.storage.replication.factor": replication,
            "offset.flush.interval.ms": "500",
            # A source that was killed does not send its last lines twice, if its connector can do that (files can).
            "exactly.once.source.support": "enabled",
            "listeners": f"http://127.0.0.1:{self.service.inner_port}",
            "rest.advertised.host.name": "127.0.0.1",
            "rest.advertised.port": str(self.service.port),
            "rest.extension.classes": f"{_BASIC_AUTH}.BasicAuthSecurityRestExtension",
            "plugin.path": ",".join(map(str, self._plugins(launch))),
            "plugin.discovery": "hybrid_warn" if self.service.plugins else "service_load",
            # A connector may not talk the worker's clients into other credentials or files.
            "connector.client.config.override.policy": "None",
            # A worker that was killed is missed for this long; its connectors stand still until then.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1500",
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1500",
            # A sink of a pattern of topics finds a new one within this time; Kafka's default is five minutes.
            "consumer.metadata.max.age.ms": "10000",
            # There is no other worker to wait for: what a lost one did is taken up at once when it is back.
            "scheduled.rebalance.max.delay.ms": "0",
        }

    def install(self, name: str, launch: Launch) -> bool:
        """The connector is in our plugin folder; the worker sees it from its next start on. False if it was there."""
        unpacked = launch.jars.unpacked(CONNECTORS[name], launch.java)
        link = self._installed(name)
        if link.is_symlink() and link.readlink() == unpacked:
            return False
        link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(unpacked)
        return True

    def _installed(self, name: str) -> Path:
        return self.folder / "plugins" / f"installed-{name}"

    def _plugins(self, launch: Launch) -> Sequence[Path]:
        """Our plugin folder, with the file connectors and those installed in it, and the user's if there is one."""
        own = self.folder / "plugins"
        for name in CONNECTORS:
            if self._installed(name).is_symlink():
                self.install(name, launch)  # the cache may be another one, or a newer version be locked
        target = own / "connect-file"
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        for jar in launch.jars.classpath("connect-plugins", launch.java):
            shutil.copyfile(jar, target / jar.name)
        if not self.service.plugins:
            return [own]
        users = Path(self.service.plugins)
        if not users.is_dir():
            raise ConfigError(f"the plugin folder {users} does not exist", hint="headrace up --plugins DIR")
        if "," in str(users):
            raise ConfigError(
                f"the plugin folder {users} has a comma in its name", why="Connect separates folders by commas"
            )
        return [own, users]

    def ready(self) -> bool:
        return answers(self.service.port, "/connectors", self.token)

    def build_archive(self, launch: Launch) -> None:
        archive = launch.connect
        archive.build_in_background(self.class_list, self.home.node("archive-connect"))


class Console(Service):
    """The web console: Python, like us."""

    roles = "console"
    needs_kafka = False

    def __init__(self, home: Home, spec: ClusterSpec, service: ServiceSpec) -> None:
        super().__init__(home, spec, service)
        self.token_file = self.folder / "token"

    @property
    def data_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("history.sqlite*"))

    @property
    def entrance(self) -> str:
        """The address with the token of this start: whoever opens it is let in."""
        return f"{self.url}/login?token={self.token_file.read_text(encoding='ascii').strip()}"

    def spawn(self, launch: Launch) -> None:  # noqa: ARG002 - it needs nothing of it
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.token_file.unlink(missing_ok=True)
        self.output.unlink(missing_ok=True)
        host = self.service.host or "127.0.0.1"
        argv = [
            sys.executable, "-m", "headrace.console", str(self.home.root), str(self.service.port), host,
            self.process.marker,
        ]  # fmt: skip
        self.process.spawn(argv, output=self.output, environment=plain_environment())

    def ready(self) -> bool:
        return self.token_file.exists() and answers(self.service.port, "/api/health")


class Spark(Service):
    """A Spark JVM that pipelines find ready; what it is and who may use it is said in `headrace.pipeline.spark.warm`.

    The process is a small one that keeps the JVM. It needs no Kafka, but starts when the brokers are done with that.
    """

    roles = "spark driver"

    def __init__(self, home: Home, spec: ClusterSpec, service: ServiceSpec) -> None:
        super().__init__(home, spec, service)
        self.jvm = Supervised(self.folder / "jvm")
        self.log = self.jvm.folder / "spark.log"

    @property
    def awaited(self) -> str:
        return "its JVM is being warmed up"

    def spawn(self, launch: Launch) -> None:
        launch.jars.classpath("spark", launch.java)  # downloaded here, where its progress is shown
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.output.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "headrace.pipeline.spark.keep_warm", str(self.home.root), self.process.marker]
        self.process.spawn(argv, output=self.output, environment=plain_environment())

    def ready(self) -> bool:
        return bool((read_json(self.folder / "address.json") or {}).get("warm")) and self.jvm.find() is not None

    def has_ended(self) -> None:
        super().has_ended()
        self.jvm.kill()
        self.jvm.forget()


class ServiceStarter:
    """Starts services and waits until they answer; what it has started ends with a failure."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._started: list[Service] = []

    def spawn(self, services: Sequence[Service]) -> None:
        """Those that did not run were started, paused ones run on."""
        for service in services:
            if service.process.state == "paused":
                service.process.signal(signal.SIGCONT)
            if service.process.find():
                service.complete()
                continue
            self.launch.progress.say(f"starting {service.name}")
            self._started.append(service)
            service.spawn(self.launch)

    def wait(self, services: Sequence[Service]) -> None:
        """All of them answer."""
        within_s = self.launch.timeout_s
        for service in services:

            def answering(service: Service = service) -> bool:
                if service.process.state == "dead":
                    raise service.failure(
                        f"{service.name} died while it was starting", hint=f"headrace logs {service.name}"
                    )
                return service.ready()

            try:
                eventually(answering, within_s, every_s=0.1)
            except NotYet:
                raise service.late(within_s, service.awaited) from None
            service.build_archive(self.launch)

    def end(self) -> None:
        """What was started here is gone again."""
        for service in self._started:
            service.process.kill()
            service.has_ended()


KINDS: Mapping[str, type[Service]] = {"registry": Registry, "connect": Connect, "console": Console, "spark": Spark}

# Spark takes more memory than everything else together: who wants it says so.
_ALL = tuple(name for name in KINDS if name != "spark")

# The ports that stand in everybody's notes; a second port is for the process behind the address.
FIRST_CHOICES: Mapping[str, tuple[int, int]] = {
    "registry": (8081, 2), "connect": (8083, 2), "console": (8080, 1), "spark": (0, 0)
}  # fmt: skip


def service_of(home: Home, spec: ClusterSpec, service: ServiceSpec) -> Service:
    return KINDS[service.name](home, spec, service)


def meant(names: Sequence[str]) -> tuple[str, ...]:
    """The services that these names mean: `all` means every one of them."""
    for name in names:
        if name not in {*KINDS, "all"}:
            raise ConfigError(
                f"unknown service: {name!r}",
                why=f"known are {', '.join(KINDS)}, and all ({', '.join(_ALL)})",
                hint="headrace up --with registry",
            )
    if "all" not in names:
        return tuple(names)
    return (*_ALL, *(name for name in dict.fromkeys(names) if name not in {*_ALL, "all"}))


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def answers(port: int, path: str, token: str | None = None) -> bool:
    """True if a GET there is answered with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
