"""PROVE: the experiments of the source documents, each one a file that does it, checks it and reports it.

    catalogue ──▶ runner ──▶ an experiment with its Workbench ──▶ result ──▶ report (Markdown, HTML)
                    │                     │
                 clusters            figures (matplotlib)

An experiment works through the public library against a real cluster; what it prints as a command is what a person
would type for the same step. A check compares what was expected with what was seen there and then; nothing is ever
filled in beforehand. What differs makes the lab red, with the reason and where to look.

This room is imported by the command line alone. It never prints; a listener receives the entries of a lab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.labs.catalogue import NAMES, every_lab, find_lab
    from headrace.labs.lab import Lab
    from headrace.labs.report import check_sign, duration, quantity, to_html, to_markdown, totals, write_reports
    from headrace.labs.result import Entry, LabResult, kept_results, result_folder
    from headrace.labs.runner import RunOptions, run_labs
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "catalogue": ["NAMES", "every_lab", "find_lab"],
        "lab": ["Lab"],
        "report": ["check_sign", "duration", "quantity", "to_html", "to_markdown", "totals", "write_reports"],
        "result": ["Entry", "LabResult", "kept_results", "result_folder"],
        "runner": ["RunOptions", "run_labs"],
    })  # fmt: skip
