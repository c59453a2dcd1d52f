"""PROVE: the experiments of the source documents, each one a file that does it, checks it and reports it.

    catalogue ──▶ runner ──▶ an experiment with its Workbench ──▶ result ──▶ report (Markdown, HTML)
                    │                     │
                 clusters            figures (matplotlib)

An experiment works through the public library against a real cluster; what it prints as a command is what a person
would type for the same step. A check compares what was expected with what was seen there and then; nothing is ever
filled in beforehand. What differs makes the lab red, with the reason and where to look.

This room is imported by the command line alone. It never prints; whoever runs a lab listens to its entries.
"""

from headrace.labs.catalogue import NAMES, every_lab, find_lab
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.result import LabResult

__all__ = ["NAMES", "Lab", "LabResult", "Needs", "Parameter", "every_lab", "find_lab"]
