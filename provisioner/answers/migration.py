"""Answer of ``provisioner import``: a finding for each key of the old configuration."""

from __future__ import annotations

import os

from provisioner.answers.columns import ident, text, whole, words
from provisioner.migrate import ImportFinding, ImportOutcome

IMPORT_SCHEMA = "provisioner.import/1"
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
