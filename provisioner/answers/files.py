"""Columns of the mistakes, gaps and findings that ``check`` and ``import`` report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from provisioner import formatting
from provisioner.answers.columns import flag, ident, items, text, whole, words
from provisioner.migrate import ImportFinding, ImportOutcome

PROBLEMS_SCHEMA = "provisioner.problems/1"
PROBES_SCHEMA = "provisioner.looks/1"
IMPORT_SCHEMA = "provisioner.import/1"

PROBLEM_COLUMNS = (
    text("file", "File.", level=0),
    whole("line", "Line, from 1.", level=0),
    whole("col", "Column, from 1.", level=0),
    words("message", "Mistake and repair.", least=20),
)


class Probe(NamedTuple):
    """Result of polling a site or the overlay once; with ``dimension`` a gap between policy and site."""

    view: str
    ok: bool
    text: str
    dimension: str = ""
    nodes: Sequence[str] = ()
    """All nodes that have the gap."""


PROBE_COLUMNS = (
    text("view", "overlay, site:<name>, or store.", level=0),
    flag(
        "ok",
        "Whether the poll succeeded; false for a gap.",
        level=0,
        tint={True: "green", False: "red"},
    ),
    items(
        "nodes",
        "Nodes of a gap.",
        level=0,
        least=12,
        wrap=True,
        spare=1,
        unit=formatting.fold_hostlist,
    ),
    text(
        "dimension",
        "Of a gap: cpus, grace, ...",
        lambda p: p.dimension or None,
        null=True,
        head="GAP",
        spare=1,
    ),
    words(
        "text",
        "Result or error of the poll; for a gap, the difference and the repair.",
        head="SEEN",
        least=30,
    ),
)


OUTCOME_TINTS = {
    ImportOutcome.NEEDED: "red",
    ImportOutcome.DROPPED: "yellow",
    ImportOutcome.CHANGED: "yellow",
    ImportOutcome.CONVERTED: "green",
}
"""Colours of the outcomes, in the order of the list."""


def _finding_place(finding: ImportFinding) -> str:
    return f"{os.path.basename(finding.file)}:{finding.line}"


def _finding_words(finding: ImportFinding) -> str:
    return f"{finding.ours}: {finding.text}" if finding.ours else finding.text


_OUTCOMES = tuple(outcome.value for outcome in ImportOutcome)
FINDING_COLUMNS = (
    ident("file", "File of the old configuration.", head="WHERE", least=16, show=_finding_place),
    whole("line", "Line, from 1."),
    text(
        "verdict",
        "Outcome for this key.",
        "verdict.value",
        head="BECAME",
        choices=_OUTCOMES,
        tint=OUTCOME_TINTS,
    ),
    ident("key", "Its key there, dotted.", least=20),
    text("ours", "File and key here; empty for none.", level=1),
    words(
        "text",
        "Outcome and remaining work.",
        head="HOW, AND WHAT TO DO",
        least=30,
        show=_finding_words,
    ),
)
