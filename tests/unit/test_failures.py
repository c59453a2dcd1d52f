from __future__ import annotations

import pytest

from headrace.pipeline.spark import failures

_CALL = """An error occurred while calling o935.writeBatches.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: java.util.concurrent.ExecutionException: something
\tat java.base/java.util.concurrent.CompletableFuture.get(Unknown Source)
Caused by: org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before it was determined
\t... 12 more
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_CALL, "Timeout of 60000ms expired before it was determined"),
        (_CALL.split("Caused by")[0], "Exception thrown in awaitResult:"),
        ("An error occurred while calling o1.a.\n: java.lang.NoSuchFieldError\n\tat x", "java.lang.NoSuchFieldError"),
        ("[STREAM_FAILED] Query p [id = 1, runId = 2] terminated with exception: no such thing\n"
         "=== Streaming Query ===\nIdentifier: p\nCurrent State: ACTIVE", "no such thing"),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==\nid / 0", "Division by zero"),
    ],
)  # fmt: skip
def test_what_java_says_is_told_in_a_line(text: str, told: str) -> None:
    assert failures.one_line(Exception(text)) == told


def test_a_kafka_that_is_away_is_waited_for() -> None:
    assert failures.is_temporary(Exception(_CALL))
    assert not failures.is_temporary(Exception("[DIVIDE_BY_ZERO] Division by zero"))
