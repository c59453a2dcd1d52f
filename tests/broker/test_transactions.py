"""Transactions: what a read_committed consumer sees is what was committed, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from headrace.cluster import Cluster
from headrace.errors import Failed, UsageError
from headrace.kafka.read.consumer import ConsumeOptions, consume
from headrace.kafka.transactions import (
    TransactionPlan,
    TransactionReport,
    _Transactional,
    produce_in_transactions,
    transaction,
)
from headrace.kafka.write.inputs import InputOptions
from headrace.kafka.write.producer import produce
from headrace.kafka.write.shaping import Shaping
from tests.conftest import Headrace
from tests.records import wait_settled

MakeTopic = Callable[..., str]


def values(cluster: Cluster, topic: str, *, committed: bool, settled_within_s: float = 60) -> list[str]:
    """What a reader sees once every transaction in the topic has ended: a commit is answered before it is visible."""
    wait_settled(cluster.bootstrap, topic, within_s=settled_within_s)
    options = ConsumeOptions(isolation="committed" if committed else "uncommitted")
    return sorted((r.value or b"").decode() for r in consume(cluster, topic, options=options))


def test_the_coin_decides_and_the_readers_agree(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=2)
    sent = [f"{n:03}" for n in range(80)]
    report = produce_in_transactions(headrace_cluster, topic, sent, TransactionPlan(commit_probability=0.5, seed=7))
    outcomes = [t.outcome for t in report.transactions]
    assert len(outcomes) == 20
    assert {"committed", "aborted"} == set(outcomes)
    expected = [v for n, outcome in enumerate(outcomes) for v in sent[4 * n : 4 * n + 4] if outcome == "committed"]
    assert values(headrace_cluster, topic, committed=True) == expected
    assert values(headrace_cluster, topic, committed=False) == sent
    again = produce_in_transactions(headrace_cluster, topic, sent, TransactionPlan(commit_probability=0.5, seed=7))
    assert [t.outcome for t in again.transactions] == outcomes


def test_a_transaction_over_two_topics_is_one(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    a, b = headrace_topic(), headrace_topic()
    done = run(
        "--json", "--bootstrap", headrace_cluster.bootstrap, "produce", a, "--topics", f"{a},{b}", "--per-topic", 2,
        "--commit-probability", "0.5", "--seed", "3", stdin="\n".join(map(str, range(40))),
    )  # fmt: skip
    assert done.code == 0, done.err
    report = done.json()
    committed = [t for t in report["transactions"] if t["outcome"] == "committed"]
    assert 0 < len(committed) < 10
    assert {place[0] for t in committed for place in t["offsets"]} == {a, b}
    for topic in (a, b):
        assert len(values(headrace_cluster, topic, committed=True)) == 2 * len(committed)
        assert len(values(headrace_cluster, topic, committed=False)) == 20


def test_a_block_commits_or_aborts(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    with transaction(headrace_cluster, f"{topic}-1") as tx:
        tx.send(topic, {"n": 1}, key="k")
    with pytest.raises(RuntimeError, match="changed my mind"):
        _send_and_raise(headrace_cluster, topic)
    assert values(headrace_cluster, topic, committed=True) == ['{"n":1}']


def test_a_topic_that_does_not_exist_is_named_or_created(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    there = headrace_topic()
    with transaction(headrace_cluster, f"{there}-1") as tx:
        with pytest.raises(UsageError, match=f"no topic '{there}-gone'") as refused:
            tx.send(f"{there}-gone", "never sent")
        tx.send(there, "seen")
    assert refused.value.hint == f"did you mean {there}?"
    with transaction(headrace_cluster, f"{there}-1", create=True) as tx:
        tx.send(f"{there}-new", "seen")
    for topic in (there, f"{there}-new"):
        assert values(headrace_cluster, topic, committed=True) == ["seen"]


def _send_and_raise(cluster: Cluster, topic: str) -> None:
    with transaction(cluster, f"{topic}-1") as tx:
        tx.send(topic, {"n": 2})
        raise RuntimeError("changed my mind")


def test_the_older_of_two_producers_with_one_id_is_fenced(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    plan = TransactionPlan(size=1, transactional_id=f"{topic}-id")

    def source() -> object:
        yield "before"
        with transaction(headrace_cluster, f"{topic}-id") as newer:
            newer.send(topic, "newer")
        yield "after"

    report = produce_in_transactions(headrace_cluster, topic, source(), plan)  # type: ignore[arg-type]
    assert [t.outcome for t in report.transactions] == ["committed", "fenced"]
    assert report.error is not None
    assert "was fenced" in report.error.problem
    # What was not committed is sent by the run that goes on; nothing is wrong with the input.
    assert (report.position, report.input_is_bad) == (1, False)
    assert values(headrace_cluster, topic, committed=True) == ["before", "newer"]


def test_records_in_transactions_are_shaped_like_all_others(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic(partitions=3)
    done = run(
        "produce", topic, "--transaction", 2, "--key-field", "k", "--partition", 2, "--header", "a=b",
        "--timestamp-field", "at", "--bootstrap", headrace_cluster.bootstrap, stdin='{"k":"x","at":1600000000}\n' * 3,
    )  # fmt: skip
    assert done.code == 0
    wait_settled(headrace_cluster.bootstrap, topic)
    found = list(consume(headrace_cluster, topic))
    assert [(r.partition, r.key, r.timestamp_ms, r.headers) for r in found] == [
        (2, b"x", 1_600_000_000_000, (("a", b"b"),))
    ] * 3


@pytest.mark.parametrize("limit", ["the client's", "the topic's"])
def test_a_record_that_is_too_large_fails_its_transaction_and_no_other(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace, limit: str
) -> None:
    topic = headrace_topic(max_message_bytes="1000" if limit == "the topic's" else "1000000")
    large = "x" * (2_000_000 if limit == "the client's" else 2000)
    done = run(
        "produce", topic, "--transaction", 1, "--bootstrap", headrace_cluster.bootstrap, stdin=f"a\n{large}\nb\n"
    )
    assert done.code == 1
    assert "transaction 2: failed, 1 records" in done.err
    assert "error: 1 records could not be committed" in done.err
    assert "Message size too large" in done.err
    assert values(headrace_cluster, topic, committed=True) == ["a", "b"]


def test_a_run_that_stops_says_where_to_go_on(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = headrace_topic()
    rows = [{"k": 0}, {"x": 1}, {"k": 2}, {"x": 3}, {"k": 4}, {"k": 5}, {"k": 6}]

    def source() -> Iterator[dict[str, int]]:
        yield from rows[:5]
        raise KeyboardInterrupt

    def report_of(given: Iterable[object], skip: int = 0) -> TransactionReport:
        options = InputOptions(on_bad="skip", skip=skip)
        plan = TransactionPlan(size=2)
        shaping = Shaping(key_field="k")
        return produce_in_transactions(headrace_cluster, topic, given, plan, shaping=shaping, input_options=options)

    first = report_of(source())
    # The fourth record was rejected, but what stood beside it was not sent.
    assert (first.interrupted, first.position, first.records("committed")) == (True, 3, 2)
    commit = _Transactional.commit

    def interrupted(self: _Transactional) -> None:
        commit(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Transactional, "commit", interrupted)
        second = report_of(rows, 3)
    assert (second.interrupted, second.position, second.records("unknown")) == (True, 6, 2)
    third = report_of(rows, 6)
    assert (third.position, third.records("committed"), third.error) == (7, 1, None)
    assert values(headrace_cluster, topic, committed=True) == [f'{{"k":{n}}}' for n in (0, 2, 4, 5, 6)]
    words = ("produce", topic, "--transaction", 2, "--bootstrap", headrace_cluster.bootstrap)
    stopped = run(*words, stdin='{"k":1}\n{"k":2}\n{"k":3}\n{"k":\n')
    assert stopped.code == 1
    assert "stopped after record 2 of the input" in stopped.err
    assert "correct the input, or add --on-bad skip, and repeat the command with --skip 2" in stopped.err


def test_a_transaction_larger_than_the_clients_queue_waits_for_room(
    headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    report = produce_in_transactions(
        headrace_cluster,
        topic,
        map(str, range(1000)),
        TransactionPlan(size=1000),
        settings={"queue.buffering.max.messages": 100},
    )
    assert report.records("committed") == 1000
    assert len(values(headrace_cluster, topic, committed=True)) == 1000


def test_what_has_no_meaning_in_a_transaction_is_refused(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    where = ("--bootstrap", headrace_cluster.bootstrap, "--transaction", 2)
    for words in (("--rate", 5), ("--producers", 2), ("--flush", "each")):
        done = run("produce", headrace_topic(), *where, *words, stdin="x")
        assert (done.code, done.out) == (2, "")
        assert f"error: {words[0]} is not supported in transactions" in done.err


def test_a_block_whose_commit_is_refused_leaves_nothing_open(
    headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    """An open transaction would hold up read_committed readers until its timeout, a minute later."""
    topic = headrace_topic(max_message_bytes="1000")
    with pytest.raises(Failed), transaction(headrace_cluster) as tx:
        tx.send(topic, "x" * 2000)
    produce(headrace_cluster, topic, ["after"])
    assert values(headrace_cluster, topic, committed=True, settled_within_s=30) == ["after"]
