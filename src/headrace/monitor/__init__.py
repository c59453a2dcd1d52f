"""WATCH: what a Kafka and all that stands beside it is like, now and over time.

    Sampler ──▶ Snapshot ──▶ History (series, ownership) and events (what changed)
       ▲                          │
    Survey, registry,          metrics (Prometheus)
    Connect, nodes, pipelines

One sampler makes one immutable Snapshot every other second; whoever shows something shows the Snapshot and asks nobody.
This room changes nothing in a cluster, and nothing in it waits for a broker that does not answer.
"""
