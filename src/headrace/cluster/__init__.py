"""RUN real Kafka here: `Cluster` and its verbs (up, down, status; start, stop, restart, kill, pause, resume a node).

Beside it stand the doctor, what labs have running, and Kafka's files, read without Kafka. The names load when they are
used: the small processes of this room (`proxy`, `watcher`) need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.cluster.cluster import Cluster
    from headrace.cluster.doctor import examine, examine_foreign
    from headrace.cluster.lab_runs import LabRuns
    from headrace.cluster.node import last_lines
    from headrace.cluster.ports import free_port
    from headrace.cluster.segments import Segment, removals
    from headrace.cluster.status import ClusterStatus, foreign_status
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "cluster": ["Cluster"],
        "doctor": ["examine", "examine_foreign"],
        "lab_runs": ["LabRuns"],
        "node": ["last_lines"],
        "ports": ["free_port"],
        "segments": ["Segment", "removals"],
        "status": ["ClusterStatus", "foreign_status"],
    })  # fmt: skip
