"""Every use of the inside of Spark, Delta and py4j: what the next version may break is in this module.

Each function says which internal it uses and why. Where a public way gives the same result, it takes over when this
Spark or Delta lacks the internal (`_or_public`), and `missing` names what was lacking; an internal that is there and
throws is not a reason to fall back. The versions of the lock file lack nothing: a test checks that, and compares the
results of both ways.
"""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    import pyarrow
    from pyspark import SparkContext
    from pyspark.sql.types import StructType

P = ParamSpec("P")
T = TypeVar("T")

#: The functions below whose internal this Spark or Delta lacks.
missing: set[str] = set()


def _or_public(public: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Where the internal is missing, `public` is called instead."""

    def decorate(internal: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(internal)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return internal(*args, **kwargs)
            except (AttributeError, TypeError, Py4JError) as error:
                if not _is_missing(error):
                    raise
                missing.add(internal.__name__)
                found: T = public(*args, **kwargs)
                return found

        return call

    return decorate


def _is_missing(error: Exception) -> bool:
    """Whether a class, a method or an attribute does not exist; what Java throws is another matter."""
    if isinstance(error, TypeError):
        return "JavaPackage" in str(error)
    return isinstance(error, AttributeError) or (type(error) is Py4JError and "does not exist" in str(error))


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm


def _java_session(spark: SparkSession) -> Any:
    return spark._jsparkSession


def _java_frame(frame: DataFrame) -> Any:
    return frame._jdf


# -- the gateway of PySpark --------------------------------------------------------------------------------------------


def connect_gateway(port: int, secret: str) -> Any:
    """PySpark uses the JVM that listens there.

    Uses the variables of PySpark's launcher and `SparkContext._ensure_initialized`: the only way to hand it a JVM.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
    try:
        gateway = launch_gateway()
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    SparkContext._ensure_initialized(gateway=gateway)
    # py4j also writes what it raises to standard error, partly by the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_is_not_of_py4j)
    return gateway


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def disconnect_gateway(gateway: Any) -> None:
    """PySpark has no JVM any more: the next session starts one of its own. Uses `SparkContext._gateway`."""
    from pyspark import SparkContext

    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None


def renew_gateway(gateway: Any) -> None:
    """Nothing that an earlier session has set in this JVM holds any more."""
    properties = gateway.jvm.java.lang.System.getProperties()
    for name in [name for name in properties.stringPropertyNames() if name.startswith("spark.")]:
        properties.remove(name)


def leave_gateway(gateway: Any) -> tuple[float, int]:
    """PySpark has no JVM any more, and the JVM, which goes on, has dropped what it kept for this Python.

    Returns which part of its memory is in use still, and its threads. Uses py4j's table of the objects that Python
    refers to, and the cache of Delta, which would keep the sessions of an hour.
    """
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark import SparkContext

    jvm = gateway.jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getGateway()
    server.getCallbackClient().shutdown()  # else Python would wait for Java's end of these connections
    held = server.getBindings().keySet()
    held.retainAll([name for name in held if not re.fullmatch(r"o\d+", name)])
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    in_use = (runtime.totalMemory() - runtime.freeMemory()) / runtime.maxMemory()
    threads = jvm.java.lang.Thread.activeCount()
    gateway.shutdown_callback_server()
    gateway.close(keep_callback_server=True)
    SparkContext._gateway = None
    SparkContext._jvm = None
    return float(in_use), int(threads)


def set_java_properties(gateway: Any, properties: Mapping[str, str]) -> None:
    """Java's system properties, by the socket: they may hold secrets, which a command line would show."""
    gateway.jvm.java.lang.System.getProperties().putAll(properties)


def executor_count(context: SparkContext) -> int:
    """How many executors a Spark cluster has given. Uses `getExecutorMemoryStatus`, which PySpark does not show."""
    return int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is among them


# -- Java libraries ----------------------------------------------------------------------------------------------------


def consumer_properties(spark: SparkSession) -> set[str]:
    """The properties that Java's consumer knows (Kafka's `ConsumerConfig`, public in Java)."""
    return set(_jvm(spark).org.apache.kafka.clients.consumer.ConsumerConfig.configNames())


def invalid_consumer_properties(spark: SparkSession, given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The properties whose values Java's consumer refuses, each with its reason."""
    checked = _jvm(spark).org.apache.kafka.clients.consumer.ConsumerConfig.configDef().validate(dict(given))
    return [(str(v.name()), str(v.errorMessages()[0])) for v in checked if v.name() in given and v.errorMessages()]


def avro_schema(rows: DataFrame, namespace: str) -> str:
    """The Avro schema of the columns. Uses Spark's `SchemaConverters`, a developer API without a Python side."""
    converters = _jvm(rows.sparkSession).org.apache.spark.sql.avro.SchemaConverters
    return str(converters.toAvroType(_java_frame(rows).schema(), False, "Row", namespace).toString())


class HadoopFile(NamedTuple):
    """A file, its size and when it was last changed."""

    path: str
    size_bytes: int
    modified_ms: int


class HadoopFiles:
    """Hadoop's file system, public in Java: local folders, HDFS and object stores by one name."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._path = _jvm(spark).org.apache.hadoop.fs.Path
        self._fs = self._path(folder).getFileSystem(_java_session(spark).sessionState().newHadoopConf())

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def files(self, path: str) -> list[HadoopFile]:
        """The files at or below the path."""
        root, found = self._path(path), []
        if not self._fs.exists(root):
            return []
        # As the caller wrote the path: Hadoop puts its own form of it before each name.
        before, listed = len(str(self._fs.makeQualified(root).toString())), self._fs.listFiles(root, True)
        while listed.hasNext():
            status = listed.next()
            name = path + str(status.getPath().toString())[before:]
            found.append(HadoopFile(name, int(status.getLen()), int(status.getModificationTime())))
        return found

    def rename(self, old: str, new: str) -> None:
        if not self._fs.rename(self._path(old), self._path(new)):
            raise OSError(f"{old} could not be renamed to {new}")


# -- frames ------------------------------------------------------------------------------------------------------------


class Counted:
    """The rows of one frame that the first action on it has seen, counted while they pass."""

    def __init__(self, rows: DataFrame) -> None:
        self._seen = Observation()
        self.frame = rows.observe(self._seen, F.count(F.lit(1)))

    @property
    def rows(self) -> int:
        return _observed_count(self._seen)


def _public_count(seen: Observation) -> int:
    try:
        (count,) = seen.get.values()
    except Exception:  # Spark has left the count out; `get` has no words for that
        return 0
    return int(count)


@_or_public(_public_count)
def _observed_count(seen: Observation) -> int:
    """Uses the row behind `Observation.get`: Spark leaves the count out where it sees that no row will come."""
    observed: Any = seen._jo
    row = observed.getRow()
    return int(row.getLong(0)) if row.length() else 0


@_or_public(DataFrame.mapInArrow)
def map_in_arrow(rows: DataFrame, function: Any, schema: str) -> DataFrame:
    """Uses Java's `mapInArrow`: PySpark's own requires pandas, which it does not use."""
    from pyspark.sql.types import StructType
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, StructType.fromDDL(schema), evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    made = _java_frame(rows).mapInArrow(udf(*[rows[name] for name in rows.columns])._jc, False, None)
    return DataFrame(made, rows.sparkSession)


def _public_transform(rows: DataFrame, keys: list[Column], processor: Any, schema: StructType, time: str) -> DataFrame:
    return rows.groupBy(*keys).transformWithState(processor, schema, "append", time)


@_or_public(_public_transform)
def transform_with_state(
    rows: DataFrame, keys: list[Column], processor: Any, schema: StructType, time: str
) -> DataFrame:
    """Uses Java's `transformWithStateInPySpark`: PySpark's own requires pandas, which rows as `Row` do not use."""
    from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    call = TransformWithStateInPandasUdfUtils(processor, time).transformWithStateUDF
    kind = PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF
    udf = UserDefinedFunction(call, schema, evalType=kind)
    grouped: Any = rows.groupBy(*keys)
    java_schema = _java_session(rows.sparkSession).parseDataType(schema.json())
    column = udf(*[rows[name] for name in rows.columns])._jc
    made = grouped._jgd.transformWithStateInPySpark(column, java_schema, "append", time, None, "")
    return DataFrame(made, rows.sparkSession)


@_or_public(lambda *_: False)
def only_projects(made: DataFrame, given: DataFrame) -> bool:
    """Whether `made` has a row for each row of `given`, because only projections lie between them.

    Uses the analyzed plan. Without it the answer is no: records are then counted separately, which costs a job.
    """
    plan, base = (_java_frame(frame).queryExecution().analyzed() for frame in (made, given))
    while plan.nodeName() == "Project" and not plan.equals(base):
        plan = plan.child()
    return bool(plan.equals(base))


# -- expressions -------------------------------------------------------------------------------------------------------


def try_eval(spark: SparkSession, text: str) -> Column:
    """The SQL expression, null where it throws. Uses Catalyst's `TryEval`; SQL has `try_` for single functions only."""
    jvm = _jvm(spark)
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    expression = bridge.expression(F.expr(text)._jc)
    return Column(bridge.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expression)))


@dataclass(frozen=True)
class Node:
    """A part of a parsed expression, as Catalyst's parser sees it."""

    _node: Any
    source: str

    @property
    def kind(self) -> str:
        """The name of its Catalyst class."""
        return str(self._node.getClass().getSimpleName())

    @property
    def start(self) -> int:
        return int(self._node.origin().startIndex().get())

    @property
    def end(self) -> int:
        return int(self._node.origin().stopIndex().get()) + 1

    @property
    def text(self) -> str:
        """What was written."""
        return self.source[self.start : self.end]

    @property
    def children(self) -> list[Node]:
        return self._nodes(self._node.children())

    @property
    def function(self) -> str:
        """Of an `UnresolvedFunction`: its name."""
        return str(self._node.nameParts().last()).lower()

    @property
    def arguments(self) -> list[Node]:
        return self._nodes(self._node.arguments())

    @property
    def filter(self) -> Node | None:
        """The condition of `filter (where …)`."""
        given = self._node.filter()
        return None if given.isEmpty() else Node(given.get(), self.source)

    @property
    def windowed(self) -> tuple[Node, Node]:
        """Of a `WindowExpression`: the function, and its window."""
        return Node(self._node.windowFunction(), self.source), Node(self._node.windowSpec(), self.source)

    @property
    def window_keys(self) -> list[Node]:
        """Of a window: what it partitions and orders by."""
        order = [Node(each.child(), self.source) for each in _listed(self._node.orderSpec())]
        return [*self._nodes(self._node.partitionSpec()), *order]

    def _nodes(self, found: Any) -> list[Node]:
        return [Node(node, self.source) for node in _listed(found)]


def parse(spark: SparkSession, text: str) -> Node:
    """The parsed SQL expression. Uses the session's parser: PySpark parses, but does not show the result."""
    return Node(_java_session(spark).sessionState().sqlParser().parseExpression(text), text)


def check_is_query(spark: SparkSession, sql: str) -> None:
    """What is not a query but a command throws. Uses the session's parser: `spark.sql` would carry a command out."""
    _java_session(spark).sessionState().sqlParser().parseQuery(sql)


def is_aggregate_function(spark: SparkSession, name: str) -> bool:
    """Uses Catalyst's function registry: the catalog's public list does not say what kind a function is."""
    jvm = _jvm(spark)
    some = jvm.scala.Option.apply
    whole = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
    known = _java_session(spark).sessionState().functionRegistry().lookupFunction(whole)
    return bool(known.isDefined() and known.get().getGroup() == "agg_funcs")


def argument_casts(rows: DataFrame, call: str) -> list[str | None]:
    """To which type Spark casts each argument of the aggregate call; empty if it casts none. Uses the analyzed plan."""
    try:
        plan = _java_frame(rows.agg(F.expr(call))).queryExecution().analyzed()
    except PySparkException:  # a function that needs a window casts nothing
        return []
    made = plan.aggregateExpressions().head().child()
    if made.getClass().getSimpleName() != "AggregateExpression":
        return []
    arguments = _listed(made.aggregateFunction().children())
    return [a.dataType().sql() if a.getClass().getSimpleName() == "Cast" else None for a in arguments]


def _listed(nodes: Any) -> list[Any]:
    return [nodes.apply(at) for at in range(nodes.size())]


# -- Delta -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeltaCommit:
    """Whose batch a commit is. `note` stands in the table's history.

    `may_exist`: an earlier attempt may have committed the same batch.
    """

    writer: str
    batch: int
    note: str
    may_exist: bool

    @property
    def options(self) -> dict[str, str]:
        """As Delta's writer takes them."""
        return {
            "mergeSchema": "true", "txnAppId": self.writer, "txnVersion": str(self.batch), "userMetadata": self.note
        }  # fmt: skip


def _public_append(path: str, rows: DataFrame, commit: DeltaCommit, partition_by: tuple[str, ...] = ()) -> int | None:
    spark = rows.sparkSession
    if has_committed(spark, path, commit.writer, commit.batch):
        return None
    writer = rows.write.format("delta").mode("append").partitionBy(*partition_by)
    writer.options(**commit.options).save(path)
    # Not by an observation: if another driver was faster, Delta's writer does nothing, and none would come.
    history = spark.sql(f"describe history delta.`{path}`").where(F.col("userMetadata") == commit.note)
    row = history.orderBy(F.desc("version")).first()
    return int(row["operationMetrics"].get("numOutputRows", 0)) if row else None


@_or_public(_public_append)
def append_to_delta(path: str, rows: DataFrame, commit: DeltaCommit, partition_by: tuple[str, ...] = ()) -> int | None:
    """The rows are appended. Returns how many; None if this batch was in the table already.

    Uses `WriteIntoDelta`, the command behind `DataFrameWriter`, which makes the same commit. Delta's writer looks each
    batch up in the table's log, with a Spark job: 0.7 s, while the write takes 0.2 s. Here only a batch that may exist
    is looked up. The commit depends on the writer's last batch either way: of two drivers that write the same batch,
    Delta rejects the second.
    """
    transaction = _begin(path, rows.sparkSession, commit)
    if transaction is None:
        return None
    counted = Counted(rows)
    _append(transaction, counted.frame, commit, partition_by)
    return counted.rows


def _begin(path: str, spark: SparkSession, commit: DeltaCommit) -> Any:
    """A transaction of the table; None if the batch was committed before."""
    session, sql = _java_session(spark), _jvm(spark).org.apache.spark.sql
    sql.SparkSession.setActiveSession(session)
    transaction = sql.delta.DeltaLog.forTable(session, path).startTransaction()
    if not commit.may_exist:
        transaction.readTxn().addOne(commit.writer)  # as the lookup would note
    elif transaction.txnVersion(commit.writer) >= commit.batch:
        return None
    return transaction


def _append(
    transaction: Any, rows: DataFrame, commit: DeltaCommit, partition_by: tuple[str, ...], more: Iterable[Any] = ()
) -> None:
    """The transaction is committed with the rows, and with more actions."""
    jvm, session = _jvm(rows.sparkSession), _java_session(rows.sparkSession)
    sql, scala = jvm.org.apache.spark.sql, jvm.PythonUtils
    delta, append, none = sql.delta, sql.SaveMode.Append, jvm.scala.Option.empty()
    options = delta.DeltaOptions(scala.toScalaMap(commit.options), session.sessionState().conf())
    columns = scala.toSeq(list(partition_by))
    command = delta.commands.WriteIntoDelta(
        transaction.deltaLog(), append, options, columns, scala.toScalaMap({}), _java_frame(rows), none, none, False
    )
    made = command.writeAndReturnCommitData(transaction, session, none, False)
    operation = getattr(delta, "DeltaOperations$Write")(
        append, jvm.scala.Option.apply(columns), none, options.userMetadata(), none, none, none, none, none
    )
    transaction.commit(made.actions().appendedAll(scala.toSeq(list(more))), operation)


#: Rows are replaced without writing their files again, and files are joined when there are many small ones.
_REPLACEABLE = {"delta.enableDeletionVectors": "true", "delta.autoOptimize.autoCompact": "true"}


def create_for_replacing(path: str, like: DataFrame, partition_by: tuple[str, ...]) -> None:
    """A table without rows exists, of those columns, whose rows `replace_in_delta` replaces cheaply."""
    none = like.sparkSession.createDataFrame([], like.schema).write.format("delta").partitionBy(*partition_by)
    none.options(**_REPLACEABLE).mode("append").save(path)


def row_address() -> Column:
    """Of a row of a Delta table, for `replace_in_delta`: where it is. Delta knows that if it has deletion vectors."""
    return F.struct(F.col("_metadata.file_path").alias("file"), F.col("_metadata.row_index").alias("row"))


def _public_replace(path: str, changed: DataFrame, commit: DeltaCommit, partition_by: tuple[str, ...] = ()) -> None:
    spark = changed.sparkSession
    if has_committed(spark, path, commit.writer, commit.batch):
        return
    old = changed.where("_old is not null").select("_old")
    kept = spark.read.format("delta").load(path).withColumn("_old", row_address()).join(old, "_old", "left_anti")
    rows = kept.drop("_old").unionByName(_new_rows(changed), allowMissingColumns=True)
    writer = rows.write.format("delta").mode("overwrite").partitionBy(*partition_by)
    writer.options(**commit.options).save(path)


def _new_rows(changed: DataFrame) -> DataFrame:
    return changed.where("_new").drop("_old", "_new")


@_or_public(_public_replace)
def replace_in_delta(path: str, changed: DataFrame, commit: DeltaCommit, partition_by: tuple[str, ...] = ()) -> None:
    """In one commit, the rows at `_old` (see `row_address`, null where there is none) are gone, and those `_new` there.

    Uses what MERGE uses to mark rows of a file as deleted. MERGE itself reads both sides twice and looks its batch up
    in the log; here the rows are known already. The public way writes the whole table again.
    """
    transaction = _begin(path, changed.sparkSession, commit)
    if transaction is None:
        return
    old = changed.where("_old is not null").select("_old.*")
    _append(transaction, _new_rows(changed), commit, partition_by, _removals(transaction, old))


def _removals(transaction: Any, rows: DataFrame) -> list[Any]:
    """The actions that remove those rows, given by `file` and `row`."""
    jvm, session = _jvm(rows.sparkSession), _java_session(rows.sparkSession)
    commands, some = jvm.org.apache.spark.sql.delta.commands, jvm.scala.Option.apply
    vectors = getattr(getattr(commands, "DeletionVectorBitmapGenerator$"), "MODULE$")
    helper = getattr(getattr(commands, "DMLWithDeletionVectorsHelper$"), "MODULE$")
    transaction.readWholeTable()  # what others commit meanwhile is a conflict
    files = jvm.PythonUtils.toSeq(list(transaction.snapshot().allFiles().collect()))
    always = jvm.org.apache.spark.sql.classic.ExpressionUtils.expression(F.lit(True)._jc)
    made = vectors.buildRowIndexSetsForFilesMatchingCondition(
        session, transaction, True, _java_frame(rows), files, always, some(F.col("file")._jc), some(F.col("row")._jc)
    )
    known = helper.generateCandidateFileMap(transaction.deltaLog().dataPath(), files)
    actions: list[Any] = []
    for touched in _listed(helper.findFilesWithMatchingRows(transaction, known, made)):
        if touched.isFullyReplaced():
            actions.append(touched.fileLogEntry().remove())
        else:
            pair = touched.fileLogEntry().removeRows(touched.newDeletionVector(), True, True)
            actions += [pair._1(), pair._2()]
    return actions


def _public_is_delta_table(spark: SparkSession, path: str) -> bool:
    try:
        spark.read.format("delta").load(path)
    except AnalysisException:
        return False
    return True


@_or_public(_public_is_delta_table)
def is_delta_table(spark: SparkSession, path: str) -> bool:
    """Uses `DeltaTable`, public in Java: its Python side is a package of its own. The public way reads the schema."""
    return bool(_jvm(spark).io.delta.tables.DeltaTable.isDeltaTable(_java_session(spark), path))


def _public_delta_version(spark: SparkSession, path: str) -> tuple[str, int]:
    table = spark.sql(f"describe detail delta.`{path}`").collect()[0]["id"]
    return str(table), int(spark.sql(f"describe history delta.`{path}` limit 1").collect()[0]["version"])


@_or_public(_public_delta_version)
def delta_version(spark: SparkSession, path: str) -> tuple[str, int]:
    """The id of the table and its newest version. Uses `DeltaLog`: the public way takes two jobs of Spark."""
    log = _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(_java_session(spark), path)
    snapshot = log._2()
    return str(snapshot.metadata().id()), int(snapshot.version())


def _public_has_committed(spark: SparkSession, path: str, writer: str, batch: int) -> bool:
    """From the files of the log: single commits as JSON, older ones in checkpoints."""
    reader, last = spark.read.schema("txn struct<appId: string, version: long>"), -1
    for read, files in ((reader.json, "*.json"), (reader.parquet, "*.checkpoint*.parquet")):
        with suppress(AnalysisException):  # there is no such file
            found = read(f"{path}/_delta_log/{files}").where(F.col("txn.appId") == writer)
            row = found.agg(F.max("txn.version")).first()
            last = max(last, row[0] if row and row[0] is not None else -1)
    return last >= batch


@_or_public(_public_has_committed)
def has_committed(spark: SparkSession, path: str, writer: str, batch: int) -> bool:
    """Whether the table's log says that this writer has finished this batch. Uses Delta's `DeltaLog` and its snapshot.

    Delta keeps the snapshot in memory; the public way reads the log.
    """
    log = _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(_java_session(spark), path)
    last = log._2().transactions().get(writer)
    return bool(last.isDefined() and last.get() >= batch)


# -- versions of Delta tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeltaVersion:
    """A version of a Delta table. `id` is the table's own: one that was deleted and written again has another."""

    path: str
    id: str
    number: int


def newest_version(spark: SparkSession, path: str) -> DeltaVersion:
    """Uses Delta's `DeltaLog`: no public call says which version a frame is read from."""
    log = _jvm(spark).org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(_java_session(spark), path)
    snapshot = log._2()
    return DeltaVersion(path, str(snapshot.metadata().id()), int(snapshot.version()))


@dataclass(frozen=True)
class ChangedFiles:
    """The files that only the older and only the newer of two versions of a table has, as frames of their rows."""

    removed: DataFrame | None
    added: DataFrame | None
    #: Whether the columns may differ, too.
    is_redefined: bool = False


def changed_files(spark: SparkSession, before: DeltaVersion, after: DeltaVersion) -> ChangedFiles | None:
    """What lies between two versions of a table; None if the log or a file of the older one has been cleaned up.

    Uses `DeltaLog.getChanges`, and `createDataFrame` for some files of a version, as Delta's streaming source does.
    """
    jvm, none = _jvm(spark), _jvm(spark).scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(_java_session(spark), before.path)
    added: dict[tuple[str, str], Any] = {}
    removed: set[tuple[str, str]] = set()
    expected, redefined = before.number + 1, False
    changes = log.getChanges(expected, after.number, none, False)
    while changes.hasNext():
        commit = changes.next()
        if int(commit._1()) != expected:
            return None
        expected += 1
        actions = _listed(commit._2())
        redefined |= any(action.getClass().getSimpleName() == "Metadata" for action in actions)
        _take_files(actions, added, removed)
    if expected != after.number + 1:
        return None
    newer = log.getSnapshotAt(after.number, none, none, False)
    old: list[Any] = []
    if removed:
        files = log.getSnapshotAt(before.number, none, none, False).allFiles()
        wanted = F.col("path").isin(sorted({path for path, _ in removed}))
        old = [file for file in files.filter(wanted._jc).collectAsList() if _file_key(file) in removed]
        if not all(_is_there(spark, before.path, file) for file in old):
            return None

    def frame(files: list[Any]) -> DataFrame | None:
        if not files:
            return None
        return DataFrame(log.createDataFrame(newer, jvm.PythonUtils.toSeq(files), False, none), spark)

    return ChangedFiles(frame(old), frame(list(added.values())), redefined)


def _take_files(actions: list[Any], added: dict[tuple[str, str], Any], removed: set[tuple[str, str]]) -> None:
    """One commit more: a file that was added and removed in between does not count, and the other way round."""
    by_kind = {kind: [a for a in actions if a.getClass().getSimpleName() == kind] for kind in ("RemoveFile", "AddFile")}
    for action in by_kind["RemoveFile"]:
        if added.pop(key := _file_key(action), None) is None:
            removed.add(key)
    for action in by_kind["AddFile"]:
        if (key := _file_key(action)) in removed:
            removed.remove(key)
        else:
            added[key] = action


def _file_key(file: Any) -> tuple[str, str]:
    """A file with other deleted rows is another one."""
    vector = file.deletionVector()
    return str(file.path()), str(vector.uniqueId()) if vector is not None else ""


def _is_there(spark: SparkSession, root: str, file: Any) -> bool:
    """Whether the file can still be read, and which of its rows were deleted: VACUUM removes either by itself."""
    from urllib.parse import unquote

    files, relative, vector = HadoopFiles(spark, root), unquote(str(file.path())), file.deletionVector()
    needed = [relative if "://" in relative else f"{root}/{relative}"]
    if vector is not None and vector.isOnDisk():
        needed.append(str(vector.absolutePath(_jvm(spark).org.apache.hadoop.fs.Path(root)).toString()))
    return all(map(files.exists, needed))


# -- plans of queries --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """An analyzed plan of Catalyst. Columns and expressions are Catalyst's; plans made of plans keep their ids."""

    _plan: Any
    spark: SparkSession

    @property
    def kind(self) -> str:
        """The name of its class: Project, Filter, Join …"""
        return str(self._plan.getClass().getSimpleName())

    @property
    def children(self) -> list[Plan]:
        return [Plan(child, self.spark) for child in _listed(self._plan.children())]

    @property
    def output(self) -> list[Any]:
        return _listed(self._plan.output())

    @property
    def references(self) -> set[int]:
        """The ids of the columns that its own expressions use."""
        return ids_of(_listed(self._plan.expressions()))

    @property
    def table(self) -> str:
        """Of a `View`: the name by which SQL knows it."""
        return str(self._plan.desc().identifier().table())

    @property
    def results(self) -> list[Any]:
        """Of a `Project` and an `Aggregate`: the named expressions that are its columns."""
        return _listed(self._plan.projectList() if self.kind == "Project" else self._plan.aggregateExpressions())

    @property
    def groups(self) -> list[Any]:
        """Of an `Aggregate` and a `Window`: the expressions whose values keep rows apart."""
        return _listed(self._plan.groupingExpressions() if self.kind == "Aggregate" else self._plan.partitionSpec())

    @property
    def join_kind(self) -> str:
        """INNER, CROSS, LEFT OUTER, RIGHT OUTER, FULL OUTER, LEFT SEMI, LEFT ANTI."""
        return str(self._plan.joinType().sql())

    @property
    def condition(self) -> Any:
        """Of a `Join`: an option of an expression; of a `Filter`: the expression."""
        return self._plan.condition()

    @property
    def conditions(self) -> list[Any]:
        """Of a `Filter`: the parts of its condition that all have to hold."""
        return _conjuncts(self._plan.condition())

    def contains(self, pattern: str) -> bool:
        """Whether a node or an expression in it is of that kind (`TreePattern`)."""
        patterns = _jvm(self.spark).org.apache.spark.sql.catalyst.trees.TreePattern
        return bool(self._plan.containsPattern(getattr(patterns, pattern)()))

    @property
    def is_deterministic(self) -> bool:
        return bool(self._plan.deterministic())

    @property
    def inlined(self) -> Plan:
        """With the queries of WITH in the places of their names."""
        rule = _jvm(self.spark).org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False)
        return Plan(rule.apply(self._plan), self.spark)

    def on(self, *children: Plan) -> Plan:
        """The same step, of other rows."""
        return self._made(self._plan.withNewChildren(_seq(self.spark, [child._plan for child in children])))

    def project(self, expressions: list[Any]) -> Plan:
        return self._made(self._logical.Project(_seq(self.spark, expressions), self._plan))

    def filter(self, conditions: list[Any]) -> Plan:
        """The rows for which all of them hold."""
        plan = self._plan
        for condition in conditions:
            plan = self._logical.Filter(condition, plan)
        return self._made(plan)

    def distinct(self) -> Plan:
        return self._made(self._logical.Distinct(self._plan))

    def union(self, *others: Plan) -> Plan:
        """The rows of all; the columns are those of this one."""
        if not others:
            return self
        plans = _seq(self.spark, [self._plan, *[other._plan for other in others]])
        return self._made(self._logical.Union(plans, False, False))

    def join(self, other: Plan, kind: str, condition: Any) -> Plan:
        """`kind` is Inner or LeftSemi."""
        plans = _jvm(self.spark).org.apache.spark.sql.catalyst.plans
        hint = getattr(getattr(plans.logical, "JoinHint$"), "MODULE$").NONE()
        how = getattr(getattr(plans, f"{kind}$"), "MODULE$")
        return self._made(self._logical.Join(self._plan, other._plan, how, condition, hint))

    @property
    def frame(self) -> DataFrame:
        dataset = _jvm(self.spark).org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(_java_session(self.spark), self._plan), self.spark)

    @property
    def _logical(self) -> Any:
        return _jvm(self.spark).org.apache.spark.sql.catalyst.plans.logical

    def _made(self, plan: Any) -> Plan:
        return Plan(plan, self.spark)


@_or_public(lambda *_: None)
def plan_of(frame: DataFrame) -> Plan | None:
    """The analyzed plan of a frame; None where Spark does not show it."""
    return Plan(_java_frame(frame).queryExecution().analyzed(), frame.sparkSession)


def _conjuncts(condition: Any) -> list[Any]:
    if condition.getClass().getSimpleName() != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]


def id_of(named: Any) -> int:
    """Of a column or a named expression: by what other expressions refer to it."""
    return int(named.exprId().id())


def ids_of(expressions: list[Any]) -> set[int]:
    """The ids of the columns that the expressions use."""
    return {id_of(found) for each in expressions for found in _listed(each.references().toSeq())}


def has_aggregate(spark: SparkSession, expression: Any) -> bool:
    pattern = _jvm(spark).org.apache.spark.sql.catalyst.trees.TreePattern.AGGREGATE_EXPRESSION()
    return bool(expression.containsPattern(pattern))


def renamed(spark: SparkSession, expression: Any, like: Any) -> Any:
    """The expression as the column `like`: with its name and its id."""
    jvm = _jvm(spark)
    nothing, none = _seq(spark, []), jvm.scala.Option.empty()
    alias = jvm.org.apache.spark.sql.catalyst.expressions.Alias
    return alias(expression, like.name(), like.exprId(), nothing, none, nothing)


def null_like(spark: SparkSession, column: Any) -> Any:
    """Null, as the column."""
    literal = _jvm(spark).org.apache.spark.sql.catalyst.expressions.Literal
    return renamed(spark, literal.create(None, column.dataType()), column)


def _seq(spark: SparkSession, items: list[Any]) -> Any:
    return _jvm(spark).PythonUtils.toSeq(items)


# -- small batches without a job ---------------------------------------------------------------------------------------


class Projections:
    """What a query does to each record of a batch, compiled, and run by the calling thread: one at a time.

    Uses Spark's reader, `UnsafeProjection` and `ArrowConverters`, as a task would. Spark takes a tenth of a second to
    plan a batch and to hand it to tasks, however small it is. The public way is such a job.

    The rows come over by `file`: on the socket between Java and Python, what exceeds 8 kB would wait for 40 ms until
    the first part of it is acknowledged.
    """

    def __init__(self, rows: DataFrame, steps: list[tuple[Any, Any]], file: Path) -> None:
        jvm = _jvm(rows.sparkSession)
        spark: Any = jvm.org.apache.spark
        # The settings that hold while expressions are compiled are those of the thread's session.
        spark.sql.SparkSession.setActiveSession(_java_session(rows.sparkSession))
        make = spark.sql.catalyst.expressions.UnsafeProjection.create
        projections = [make(expressions, inputs) for expressions, inputs in steps]
        self._row_of = jvm.scala.Function.chain(jvm.PythonUtils.toSeq(projections))
        self._schema = _java_frame(rows).schema()
        self._contexts = getattr(getattr(spark, "TaskContext$"), "MODULE$")
        self._arrow = getattr(getattr(spark.sql.execution.arrow, "ArrowConverters$"), "MODULE$")
        self._writer = spark.sql.execution.arrow.ArrowBatchStreamWriter
        self._output = jvm.java.io.FileOutputStream
        self._no_error = jvm.scala.Option.empty()
        self._file = file

    def table(self, raw: DataFrame) -> tuple[pyarrow.Table, int]:
        """The rows that the batch becomes, and how many records Spark's source has read for them."""
        import pyarrow.ipc

        try:
            read = self._write(raw)
            return pyarrow.ipc.open_stream(self._file.read_bytes()).read_all(), read
        finally:
            self._file.unlink(missing_ok=True)

    def _write(self, raw: DataFrame) -> int:
        records = _java_frame(raw).queryExecution().executedPlan().collectLeaves().head().rdd()
        output = self._output(str(self._file))
        try:
            writer = self._writer(self._schema, output, "UTC", True, False)
            read = sum(self._write_part(records, partition, writer) for partition in records.partitions())
            writer.end()
        finally:
            output.close()
        return read

    def _write_part(self, records: Any, partition: Any, writer: Any) -> int:
        """The rows of a partition are written; how many records were read for them."""
        context = self._contexts.empty()
        self._contexts.setTaskContext(context)
        try:
            rows = records.iterator(partition, context).map(self._row_of)
            writer.writeBatches(self._arrow.toBatchIterator(rows, self._schema, 0, "UTC", True, False, context))
            return int(context.taskMetrics().inputMetrics().recordsRead())
        finally:
            context.markTaskCompleted(self._no_error)  # the reader is given back
            self._contexts.unset()


@_or_public(lambda *_: None)
def projections(rows: DataFrame, file: Path) -> Projections | None:
    """What `rows` makes of a batch; None if that is more than projections, or not the same for every batch."""
    query = _java_frame(rows).queryExecution()
    plan = query.optimizedPlan()
    patterns: Any = _jvm(rows.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    # What is said to be now must be now for every batch; Spark puts a constant there when it plans.
    changes = query.analyzed().containsPattern(patterns.CURRENT_LIKE()) or not plan.deterministic()
    if changes or plan.containsPattern(patterns.PLAN_EXPRESSION()):
        return None
    steps: list[tuple[Any, Any]] = []
    while plan.nodeName() == "Project":
        steps.insert(0, (plan.projectList(), plan.child().output()))
        plan = plan.child()
    return Projections(rows, steps, file) if plan.nodeName() == "LogicalRDD" else None


@_or_public(lambda *_: None)
def projected(compiled: Projections, raw: DataFrame) -> tuple[pyarrow.Table, int] | None:
    """`compiled.table(raw)`; None where a job has to do it."""
    return compiled.table(raw)
