"""DuckDB, closed off: SQL over the sources that it is given, and over nothing else.

An `Engine` is a database in memory that reads no file and no network, loads no extension and takes no settings. Its
memory, threads and time are limited. It works in a thread of its own, so that Ctrl-C and a timeout end a query at once.
What DuckDB has to say about a query becomes an error of ours, with the place in the query.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.text import duration

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")

_ROWS_PER_BATCH = 10_000
_KIND = re.compile(r"[A-Z]\w+(?: \w+)*? Error: ")
_folders = count()
# Columns that pipelines and topics have, and words of SQL's: what follows where SQL's word is meant.
_WORDS = {"at": r"\s*(?:time\b|\()", "offset": r"\s*[\d(?$]", "window": r"\s+\w+\s+as\b", "end": r"(?!)"}


@dataclass(frozen=True)
class Limits:
    """What a query may use. Without `spill`, what does not fit into memory ends it."""

    memory: str = "50%"
    threads: int | None = None
    timeout_s: float | None = None
    spill: bool = True


class Stream:
    """Arrow batches that are made anew whenever DuckDB scans them; what goes wrong meanwhile is kept."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.schema = schema
        self.failure: BaseException | None = None
        self._batches = batches

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._noted()).__arrow_c_stream__()

    def _noted(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise


class Engine:
    """A DuckDB of its own; used as a context."""

    def __init__(self, limits: Limits | None = None) -> None:
        import duckdb

        self.limits = limits or Limits()
        self.stopped = threading.Event()
        self._deadline = time.monotonic() + self.limits.timeout_s if self.limits.timeout_s else None
        self._closed = False
        self._streams: list[Stream] = []
        self._worker = ThreadPoolExecutor(1, "sql")
        self._connection = duckdb.connect(":memory:", config=_settings(self.limits))
        for setting in ("TimeZone = 'UTC'", "enable_external_access = false", "lock_configuration = true"):
            self._connection.execute(f"set {setting}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The query that runs is ended. DuckDB closes in its own thread, as soon as it has noticed."""
        self.stop()
        if not self._closed:
            self._closed = True
            with suppress(RuntimeError):  # Python itself is ending
                self._worker.submit(self._connection.close)
            self._worker.shutdown(wait=False)

    def stop(self) -> None:
        """The query that runs ends with an error; sources that wait look at `stopped`."""
        self.stopped.set()
        if not self._closed:
            self._connection.interrupt()

    # -- what can be read ----------------------------------------------------------------------------------------------

    def add(self, path: Sequence[str], sources: Sequence[Any]) -> None:
        """The sources (Arrow datasets, tables, `Stream`s), one behind the other, are the table of that name."""
        self._streams += [source for source in sources if isinstance(source, Stream)]
        self._explained(lambda: self._add(path, sources))

    def _add(self, path: Sequence[str], sources: Sequence[Any]) -> None:
        if len(path) == 1 and len(sources) == 1:
            self._connection.register(path[0], sources[0])
            return
        names = [f"{'.'.join(path)} #{at}" for at, _ in enumerate(sources, 1)]
        for name, source in zip(names, sources, strict=True):
            self._connection.register(name, source)
        if len(path) > 1:
            self._connection.execute(f"create schema if not exists {quoted(path[0])}")
        rows = " union all ".join(f"from {quoted(name)}" for name in names)
        self._connection.execute(f"create or replace view {'.'.join(map(quoted, path))} as {rows}")

    def facts(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a short statement of our own."""
        return self._explained(lambda: self._connection.execute(statement, list(values)).fetchall())

    def parsed(self, query: str) -> list[duckdb.Statement]:
        """The statements in the text. Where `at`, `offset` and the like can only be columns, they need no quotes."""
        import duckdb

        try:
            return self._connection.extract_statements(query)
        except duckdb.ParserException as error:
            try:
                return self._connection.extract_statements(_with_names(query))
            except duckdb.Error:
                raise explained(error) from None

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, query: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The columns of the query's result, and its rows, computed while they are asked for."""
        return self._started(lambda: self._connection.sql(query))

    def select(
        self, name: str, where: str | None, columns: Sequence[str], order: str | None = None, limit: int | None = None
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Rows of one source for which the condition holds; columns and order are SQL."""

        def chosen() -> duckdb.DuckDBPyRelation:
            rows = self._connection.view(name)
            rows = rows.filter(self._condition(where)) if where is not None else rows
            rows = rows.order(order) if order else rows
            rows = rows.limit(limit) if limit is not None else rows
            return rows.project(", ".join(columns))

        return self._started(chosen)

    def _condition(self, text: str) -> str:
        found = self.parsed(f"select {text}")
        return found[0].query.removeprefix("select ") if len(found) == 1 else text

    def _started(self, make: Callable[[], Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        reader = self._ask(lambda: make().to_arrow_reader(_ROWS_PER_BATCH))
        names = distinct(reader.schema.names)
        schema = reader.schema.empty_table().rename_columns(names).schema
        return schema, self._pulled(reader, names)

    def _pulled(self, reader: pa.RecordBatchReader, names: list[str]) -> Iterator[pa.RecordBatch]:
        while (batch := self._ask(lambda: next(reader, None))) is not None:
            if batch.num_rows:
                yield batch.rename_columns(names)

    def _ask(self, step: Callable[[], T]) -> T:
        """The step is done in DuckDB's thread: here one can wait for it no longer."""
        future: Future[T] = self._worker.submit(step)
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            return self._explained(lambda: future.result(left))
        except BaseException as error:
            if not future.done():
                self.stop()
            if isinstance(error, NotDone):
                raise _too_slow(self.limits) from None
            raise

    def _explained(self, step: Callable[[], T]) -> T:
        import duckdb

        try:
            return step()
        except (HeadraceError, NotDone):
            raise
        except (duckdb.Error, OSError, ValueError, NotImplementedError) as error:
            failure = next((stream.failure for stream in self._streams if stream.failure), None)
            if isinstance(failure, HeadraceError):
                raise failure from None
            raise explained(error) from None


def distinct(names: Iterable[str]) -> list[str]:
    """The names, with a number behind those that occurred before: a row as a mapping has each name once."""
    used: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1))
        used[next(each for each in chain([name], numbered) if each not in used)] = None
    return list(used)


def quoted(name: str) -> str:
    """The name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def _with_names(query: str) -> str:
    """The text with quotes around words of SQL's that stand where a column is meant."""
    import duckdb

    starts = [at for at, kind in duckdb.tokenize(query) if kind == duckdb.token_type.keyword]
    words = [(at, re.match(r"\w+", query[at:])) for at in starts]
    made, done = [], 0
    has_case = any(word and word[0].lower() == "case" for _, word in words)
    for at, word in words:
        follows = _WORDS.get(word[0].lower()) if word else None
        if word and follows and not (has_case and word[0].lower() == "end"):
            end = at + len(word[0])
            if not re.match(follows, query[end:], re.IGNORECASE):
                made += [query[done:at], quoted(word[0])]
                done = end
    return "".join([*made, query[done:]])


def explained(error: Exception) -> HeadraceError:
    """What DuckDB reports, in its words: of a mistake in the query with the place, else with what to try."""
    kind, text = type(error).__name__, str(error).strip()
    first, _, rest = _KIND.sub("", text, count=1).partition("\n")
    if "Out of Memory Error" in text:
        return Failed(
            "the query needs more memory than it may use", why=first,
            hint="select fewer columns or rows, or aggregate before you sort or join",
        )  # fmt: skip
    if "INTERRUPT Error" in text:
        return Failed("the query was ended before it was done")
    if "FileNotFoundError" in text or "No such file or directory" in text:
        return Failed(
            "a file of a table is gone", why=first, hint="the table was cleaned or wiped meanwhile: repeat the command"
        )
    if kind == "IOException" or "reading the stream registered" in text:
        return Failed("a table or topic could not be read", why=first)
    lines = [line for line in rest.splitlines() if line.strip()]
    # The mark below a line of the query stands below its place.
    why = "".join(f"\n    {line}" for line in lines) if len(lines) > 1 else "".join(lines)
    return UsageError(f"the SQL cannot be run: {first}", why=why or None)


def _too_slow(limits: Limits) -> Failed:
    return Failed(
        f"the query was ended: it took longer than {duration(limits.timeout_s)}",
        hint="restrict it: a where on a partition column, fewer columns, a limit",
    )


def _settings(limits: Limits) -> dict[str, Any]:
    found: dict[str, Any] = {
        "memory_limit": _bytes(limits.memory),
        # Made when it is needed, and removed with the database.
        "temp_directory": f"{tempfile.gettempdir()}/headrace-sql-{os.getpid()}-{next(_folders)}"
        if limits.spill
        else "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    return found | ({"threads": limits.threads} if limits.threads else {})


def _bytes(memory: str) -> str:
    """A share of the machine's memory, which DuckDB does not know, in bytes."""
    if not memory.endswith("%"):
        return memory
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{total * int(memory[:-1]) // 100}B"
