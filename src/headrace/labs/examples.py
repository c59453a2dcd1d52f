"""`Example`: a pipeline of the package's examples, as its file stands, run by a lab on the shared Spark session.

Its folder is the lab's, so that tables and checkpoint begin empty and are gone with the lab. What it has written is
read back without Spark, from Delta's log and the Parquet files.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from headrace import Home, Pipeline, Query, RunReport, example, read_table
from headrace.labs.workbench import Workbench


def declaration_of(name: str) -> str:
    """The headrace.toml of the example."""
    return example(name).read_text(encoding="utf-8")


class Example:
    """The example of that name, with all that its runs leave."""

    def __init__(self, lab: Workbench, name: str) -> None:
        self._lab = lab
        self.name = name
        self.folder: Path = lab.files / name
        self.folder.mkdir()
        shutil.copy(example(name), self.folder)
        self.pipeline = Pipeline.from_file(self.folder, name, Home(self.folder / ".headrace"))

    def run(self, records: int) -> RunReport:
        """Process all records; so many must be read, and the ledger must balance."""
        lab = self._lab
        lab.shows(f"headrace pipeline run {self.name} --once", f"headrace pipeline ledger {self.name}")
        report = self.pipeline.run(lab.cluster, once=True, spark=lab.spark)
        lab.say(f"The run: {report}.")
        if report.ledger:
            lab.table(
                "the ledger: what became of every record",
                ["topic", "partition", "read", "written", "dead", "late", "filtered", "duplicate"],
                [(x.topic, x.partition, x.read, x.written, x.dead, x.late, x.filtered, x.duplicate)
                 for x in report.ledger],
            )  # fmt: skip
        lab.check("records read by Spark", records, report.run.read)
        balanced = report.run.balanced and all(line.balanced for line in report.ledger)
        lab.check("the ledger balances", True, balanced, look=f"headrace pipeline ledger {self.name} --by-rule")
        return report

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Every row of a table of the example, without the columns that a pipeline keeps for itself."""
        self._lab.shows(f"headrace table head {table}")
        found = read_table(self.folder / "tables" / table)
        columns = [column.name for column in found.columns if not column.name.startswith("_")]
        return [row for batch in found.batches(Query(columns)) for row in batch.to_pylist()]

    def dead_by_rule(self) -> dict[str, int]:
        """How many records each rule has sent to the dead letters, the busiest rule first."""
        return {rule: records for outcome, rule, records in self.pipeline.ledger.by_rule() if outcome == "dead"}
