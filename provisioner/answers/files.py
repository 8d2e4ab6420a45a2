"""Columns of the mistakes, gaps and findings that ``check`` and ``import`` report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provisioner import formatting
from provisioner.answers.columns import flag, items, text, whole, words

PROBLEMS_SCHEMA = "provisioner.problems/1"
PROBES_SCHEMA = "provisioner.looks/1"

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
