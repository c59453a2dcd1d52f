"""Files of a Maven repository, fetched by the Ivy that PySpark ships.

It is given exact coordinates and puts files into a folder; whether they are the right ones is for the caller to check.
No address stands here: Ivy's own default repository is used, or the one that the user's settings file names. Ivy never
outlives the process that started it, however that one ends.
"""

from __future__ import annotations

import importlib.util
import re
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from headrace.errors import SetupError
from headrace.home import size_bytes
from headrace.runtime.java import Java
from headrace.runtime.process import plain_environment

if TYPE_CHECKING:
    from headrace.runtime.jars import Artifact

# Ivy's built-in Maven repository, and nothing else: no POMs (the lock names every file), no remote checksums
# (the lock holds better ones), no look into folders that the user's own Ivy may have.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers>
    <ibiblio name="public" m2compatible="true" usepoms="false" useMavenMetadata="false" checksums=""/>
  </resolvers>
</ivysettings>
"""
_TRUST_PASSWORD = "headrace"  # noqa: S105 - a truststore of public certificates needs one, a secret it is not
# A pipe ends with the process that holds its other end, also by SIGKILL; whoever reads from it then kills Ivy.
_UNTIL_THE_PIPE_ENDS = 'exec 3<&0; (read _ <&3; kill -9 $$) & exec "$@" 3<&- </dev/null'


def fetch(
    artifacts: Sequence[Artifact], work: Path, java: Java, settings: Path | None, arrived: Callable[[int], None]
) -> str:
    """Ivy has ended, well or not: what it got lies in `work/out`; what it said is returned.

    `arrived` is called with the number of bytes on disk, again and again.
    """
    command = ["sh", "-c", _UNTIL_THE_PIPE_ENDS, "ivy", *_command(artifacts, work, java, settings)]
    log = work / "ivy.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, env=plain_environment()
        )
        try:
            while child.poll() is None:
                arrived(size_bytes(work / "cache"))
                time.sleep(0.1)
        finally:
            child.kill()
            child.communicate()
    return log.read_text(encoding="utf-8", errors="replace")


def complaint(said: str) -> str:
    """The heart of what Ivy said, if it failed."""
    found = re.search(r"(\w+(?:\.\w+)+(?:Exception|Error))(?::\s*([^\n)]*))?", said)
    if found:
        return f"{found[1].rsplit('.', 1)[-1]}{': ' + found[2] if found[2] else ''}"
    unresolved = re.search(r"::\s+(\S+#\S+: not found)", said)
    return unresolved[1] if unresolved else "Ivy gave no reason"


def _command(artifacts: Iterable[Artifact], work: Path, java: Java, settings: Path | None) -> list[str]:
    (work / "ivy.xml").write_text(_module(artifacts), encoding="utf-8")
    if settings is None:
        settings = work / "settings.xml"
        settings.write_text(_SETTINGS, encoding="utf-8")
    elif not settings.is_file():
        raise SetupError(
            f"the Ivy settings file {settings} does not exist",
            hint="correct runtime.ivy_settings (HEADRACE_IVY_SETTINGS), or remove it",
        )
    return [
        str(java.executable), *_trust_what_python_trusts(work / "trust.p12"), "-cp", str(_jar()),
        "org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(work / "ivy.xml"),
        "-cache", str(work / "cache"),
        "-retrieve", f"{work}/out/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip


def _jar() -> Path:
    # Found, not imported: PySpark takes half a second to import and is not needed for its file names.
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise SetupError(
        "the Ivy that PySpark ships was not found",
        why="pyspark is not installed whole",
        hint="pip install --force-reinstall pyspark",
    )


def _module(artifacts: Iterable[Artifact]) -> str:
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="headrace" module="jars"/><configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    for a in artifacts:
        classifier = f" m:classifier={quoteattr(a.classifier)}" if a.classifier else ""
        lines.append(
            f"<dependency org={quoteattr(a.group)} name={quoteattr(a.name)} rev={quoteattr(a.version)}"
            f' transitive="false" conf="default-&gt;default"><artifact name={quoteattr(a.name)}'
            f" type={quoteattr(a.extension)} ext={quoteattr(a.extension)}{classifier}/></dependency>"
        )
    return "\n".join([*lines, "</dependencies></ivy-module>\n"])


def _trust_what_python_trusts(store: Path) -> list[str]:
    """JVM flags that make Java accept the certificates which pip accepted: who could install can fetch."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    context = ssl.create_default_context()
    trusted: list[pkcs12.PKCS12Certificate] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some public roots break today's rules; they are trusted all the same
        for number, der in enumerate(context.get_ca_certs(binary_form=True)):
            try:
                certificate = x509.load_der_x509_certificate(der)
            except ValueError:
                continue
            trusted.append(pkcs12.PKCS12Certificate(certificate, f"ca-{number}".encode()))
    if not trusted:
        return []
    password = BestAvailableEncryption(_TRUST_PASSWORD.encode())
    store.write_bytes(pkcs12.serialize_java_truststore(trusted, password))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_TRUST_PASSWORD}"]
