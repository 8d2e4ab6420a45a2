"""``sinfo``: what is asked of it, and its answer as nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from adapters.slurm.cluster import SlurmNode
from adapters.slurm.printed import gpus, number, table, word, words

FILTERS = ("SINFO_PARTITION",)
"""Variables that would have sinfo leave out nodes."""

COLUMNS = {
    "NodeList": "NODELIST",
    "StateComplete": "STATECOMPLETE",
    "Partition": "PARTITION",
    "Features_act": "ACTIVE_FEATURES",
    "CPUsState": "CPUS(A/I/O/T)",
    "Memory": "MEMORY",
    "AllocMem": "ALLOCMEM",
    "Gres": "GRES",
    "GresUsed": "GRES_USED",
    "Threads": "THREADS",
    "Reason": "REASON",
}
"""Names of the columns, and what sinfo writes above them."""

_BASES = ("IDLE", "MIXED", "ALLOCATED", "DOWN", "FUTURE", "ERROR", "UNKNOWN", "INVALID")
_CPUS = re.compile(r"([0-9]{1,9})/([0-9]{1,9})/([0-9]{1,9})/([0-9]{1,9})")


def nodes(text: str, separator: str) -> list[SlurmNode]:
    """The answer to ``-a -N -O``, a row for each node and partition, as nodes. ValueError if it is not whole."""
    found: dict[str, SlurmNode] = {}
    for row in table(text, separator, tuple(COLUMNS.values())):
        name, partition = row[0], row[2].removesuffix("*")
        if known := found.get(name):
            found[name] = replace(known, partitions=(*known.partitions, partition))
        else:
            found[name] = _node(row, partition)
    return list(found.values())


def _node(row: Sequence[str], partition: str) -> SlurmNode:
    name, told, _, features, cpus, memory, used_memory, gres, gres_used, threads, reason = row
    counts = _CPUS.fullmatch(cpus)
    if counts is None or not name:
        raise ValueError(f"`{cpus[:40]}` is no count of the CPUs of a node")
    states = told.upper().split("+")
    base = next((state for state in states if state in _BASES), states[0])
    return SlurmNode(
        name,
        base,
        frozenset(states) - {base},
        (partition,),
        words(features),
        int(counts[4]),
        int(counts[1]),
        number(memory),
        number(used_memory),
        gpus(gres),
        gpus(gres_used),
        word(reason),
        number(threads),
    )
