"""How a run takes records: `choose` gives the strategy that a declaration asks for."""

from __future__ import annotations

from headrace.pipeline.spark.strategies import small_batches
from headrace.pipeline.spark.strategies.join import JoinStreams
from headrace.pipeline.spark.strategies.realtime import Realtime
from headrace.pipeline.spark.strategies.stateful import Stateful
from headrace.pipeline.spark.strategies.strategy import Batches, RunContext, Strategy
from headrace.pipeline.spark.strategies.watermark import Watermark


def choose(context: RunContext) -> Strategy:
    """Real-time mode, Spark's stateful operators, batches that the driver writes while they are small, or batches."""
    if context.trigger.kind == "realtime":
        return Realtime(context)
    if context.declaration.join is not None:
        return JoinStreams(context)
    streaming = context.declaration.streaming_aggregate
    if streaming is not None:
        return Stateful(context) if streaming.mode == "state" else Watermark(context)
    if small_batches.fits(context):
        return small_batches.SmallBatches(context)
    return Batches(context)
