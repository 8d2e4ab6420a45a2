"""The site's side of blocking, as HTCondor configuration: what free GPUs keep, and who makes room for whom.

The text is added to the site's own (``config.d``): what the site has of START, RANK and the rest stays in force.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from adapters.htcondor.site.nodes import shape
from provisioner.model import DroneType, Reserve, ReserveWhen, SitePolicy

BACKFILL = "(TARGET.ProvisionerController =!= undefined || TARGET.IsBackfill =?= True)"
"""What tells a drone's job from others, at startd and negotiator. Who lies about it only puts himself last."""
USES_RESERVE = "ProvisionerUsesReserve"
"""Job attribute of CPU drones that may have what free GPUs keep, while no GPU job waits in the overlay."""
JOB_ATTRS = ("IsBackfill", "ProvisionerController", "DroneId")
MEMORY_QUANTUM_MIB = 128
"""The startd rounds what a job asks for up to this (MODIFY_REQUEST_EXPR_REQUESTMEMORY)."""
DISK_QUANTUM_KIB = 1024
OWNER_RANK = 1_000_000
"""What a job that is no drone has more than a drone. What the site's own RANK tells apart is less, and still counts."""

HEAD_START_S = 90
"""Two ticks of 15 s and a negotiation cycle of 60 s, HTCondor's and our own default; the grace comes on top."""

_IN_NAMES = string.ascii_letters + string.digits + "._-"


def render(policy: SitePolicy, types: Iterable[DroneType], *, backfill: str = BACKFILL) -> str:
    """Configuration text that enforces ``policy.blocking`` and the owner's priority; the same for the same policy.

    ``backfill``: ClassAd expression that is true for a drone's job (``TARGET.`` is the job).
    """
    parts = (
        _head(policy),
        _blocking(policy.blocking) if policy.blocking else _NOTHING_KEPT,
        _preemption(policy, backfill),
        _central(backfill),
        _foot(policy, tuple(types)),
    )
    return "\n".join(parts)


def _head(policy: SitePolicy) -> str:
    return f"""\
# Blocking and preemption for drones at site {policy.site}: `provisioner render blocking --site {policy.site}`.
# Do not edit: change the site's file and print it again. Put it into config.d of the execute nodes and of the central
# manager, after the site's own files: it adds to their START, RANK, MAXJOBRETIREMENTTIME, MACHINEMAXVACATETIME,
# WANT_VACATE and PREEMPTION_REQUIREMENTS. Then: condor_reconfig.
"""


_NOTHING_KEPT = """\
# ---- Blocking: the site's file has no `blocking`, so nothing is kept for free GPUs.
"""


# ----------------------------------------------------------------------------------------------------------- blocking


def _blocking(reserves: Sequence[Reserve]) -> str:
    lines = [
        "# ---- Blocking (execute nodes)",
        "#",
        "# On a partitionable slot MY.Cpus, MY.Memory, MY.Disk and MY.GPUs are what is left in it. START demands that,",
        "# once this job has started, every GPU that is then still free finds its share:",
        *(f"#   {line}" for line in _told(reserves)),
        "# It also stops a GPU job that takes more than the other free GPUs can spare.",
        "",
        *_per_gpu("PROVISIONER_CPUS_PER_GPU", reserves, lambda r: r.cpus),
        *_per_gpu("PROVISIONER_MEMORY_PER_GPU", reserves, lambda r: r.memory_mib, "MiB"),
        *_per_gpu("PROVISIONER_DISK_PER_GPU", reserves, lambda r: r.disk_mib * 1024, "KiB"),
        "PROVISIONER_GPUS_LEFT = ((MY.GPUs ?: 0) - (TARGET.RequestGPUs ?: 0))",
    ]
    kept = [
        f"(MY.{resource} - {asked}) >= $(PROVISIONER_{name}_PER_GPU) * $(PROVISIONER_GPUS_LEFT)"
        for resource, name, asked in _asked(reserves)
    ]
    lines += ["PROVISIONER_KEEPS_RESERVE = (" + " && \\\n    ".join(kept) + ")"]
    if releases := _released(reserves):
        lines += releases
        lines += ["START = ($(START)) && ($(PROVISIONER_KEEPS_RESERVE) || $(PROVISIONER_RELEASED))"]
    else:
        lines += ["START = ($(START)) && $(PROVISIONER_KEEPS_RESERVE)"]
    return "\n".join(lines) + "\n"


def _told(reserves: Sequence[Reserve]) -> Iterator[str]:
    for reserve in reserves:
        sizes = [
            *([f"{reserve.cpus} CPUs"] if reserve.cpus else []),
            *([f"{reserve.memory_mib} MiB of memory"] if reserve.memory_mib else []),
            *([f"{reserve.disk_mib} MiB of disk"] if reserve.disk_mib else []),
        ]
        released = ", released while no GPU job waits" if reserve.when is ReserveWhen.GPU_DEMAND else ""
        yield f"{' '.join(reserve.nodes)}: {', '.join(sizes)}{released}"


def _asked(reserves: Sequence[Reserve]) -> Iterator[tuple[str, str, str]]:
    """What a job takes of each resource that some reserve keeps, rounded up as the startd does."""
    if any(r.cpus for r in reserves):
        yield "Cpus", "CPUS", "(TARGET.RequestCpus ?: 1)"
    if any(r.memory_mib for r in reserves):
        yield "Memory", "MEMORY", f"quantize(TARGET.RequestMemory ?: {MEMORY_QUANTUM_MIB}, {{{MEMORY_QUANTUM_MIB}}})"
    if any(r.disk_mib for r in reserves):
        yield "Disk", "DISK", f"quantize(TARGET.RequestDisk ?: {DISK_QUANTUM_KIB}, {{{DISK_QUANTUM_KIB}}})"


def _per_gpu(name: str, reserves: Sequence[Reserve], size: Callable[[Reserve], int], unit: str = "") -> Iterator[str]:
    """One macro: the share of the first reserve whose nodes hold this one."""
    if any(map(size, reserves)):
        if unit:
            yield f"# {unit}"
        yield f"{name} = {_by_class(reserves, lambda r: str(size(r)), '0')}"


def _by_class(reserves: Sequence[Reserve], told: Callable[[Reserve], str], otherwise: str) -> str:
    """Nested choice by node; ends where a reserve is for all nodes or the rest makes no difference."""
    if not reserves:
        return otherwise
    first, rest = reserves[0], reserves[1:]
    if "*" in first.nodes:
        return told(first)
    after = _by_class(rest, told, otherwise)
    return after if after == told(first) else f"ifThenElse({_is_node(first.nodes)}, {told(first)}, {after})"


def _is_node(patterns: Sequence[str]) -> str:
    return f'regexp("^({"|".join(map(pattern, patterns))})$", MY.Machine)'


def pattern(node_pattern: str) -> str:
    """A node pattern of the site's file as a regular expression without backslashes (ClassAd strings double them)."""
    found, at = "", 0
    while at < len(node_pattern):
        each = node_pattern[at]
        close = node_pattern.find("]", at + 2) if each == "[" else -1
        if close > 0:
            found += _one_of(node_pattern[at : close + 1])
            at = close
        else:
            found += {"*": ".*", "?": ".", ".": "[.]", "[": "[[]", "]": "[]]"}.get(each, each)
        at += 1
    return found


def _one_of(brackets: str) -> str:
    """``[a-c]`` letter by letter: the two languages differ in what ranges and hyphens mean there."""
    fitting = "".join(c for c in _IN_NAMES if fnmatchcase(c, brackets))
    return f"[{fitting}]" if fitting else "(?!)"


def _released(reserves: Sequence[Reserve]) -> list[str]:
    if not any(r.when is ReserveWhen.GPU_DEMAND for r in reserves):
        return []
    where = _by_class(reserves, lambda r: "True" if r.when is ReserveWhen.GPU_DEMAND else "False", "False")
    return [
        "# While no GPU job waits in the overlay the provisioner's own CPU drones may use the share; it asks them to",
        "# leave when one does. Any user can write the mark into his job: say in PROVISIONER_TRUSTED_JOBS, in a file",
        '# before this one, whose jobs may, say:  PROVISIONER_TRUSTED_JOBS = TARGET.User == "grid@site.example.org"',
        f"PROVISIONER_RELEASED = (TARGET.{USES_RESERVE} =?= True && {where} && ($(PROVISIONER_TRUSTED_JOBS:True)))",
    ]


# --------------------------------------------------------------------------------------------------------- preemption


def _preemption(policy: SitePolicy, backfill: str) -> str:
    grace_s = round(policy.grace_s)
    return f"""\
# ---- Owner's priority (execute nodes)
#
# Drones are backfill: any other job takes a drone's slot that it fits (one that wants no GPU would leave the slot's GPU
# without its share, and does not). The drone's job then gets SIGTERM at once and SIGKILL {grace_s} s later. Jobs that
# are no drones are treated as before.
PROVISIONER_BACKFILL = {backfill}
RANK = ($(RANK:0)) + ifThenElse($(PROVISIONER_BACKFILL), 0, {OWNER_RANK})
MAXJOBRETIREMENTTIME = ifThenElse($(PROVISIONER_BACKFILL), 0, $(MAXJOBRETIREMENTTIME:0))
MACHINEMAXVACATETIME = ifThenElse($(PROVISIONER_BACKFILL), {grace_s}, $(MACHINEMAXVACATETIME))
WANT_VACATE = $(PROVISIONER_BACKFILL) || ($(WANT_VACATE))
# What jobs tell of themselves in the ads of their slots.
STARTD_JOB_ATTRS = $(STARTD_JOB_ATTRS) {" ".join(JOB_ATTRS)}
{_head_start(policy)}"""


def _head_start(policy: SitePolicy) -> str:
    """Seen with real pools: asked and preempted at once, twice as many drones leave as the owner needs, for the
    negotiator does not know that room is being made. In START of the drone's own slot, not in RANK: a claim keeps the
    rank that it began with, and a rank that grows with age lets the owner's jobs throw out each other (seen too)."""
    if not policy.preempt_proactively:
        return ""
    head_start_s = round(policy.grace_s) + HEAD_START_S
    return f"""\
#
# The provisioner asks drones to leave for a waiting job, those whose work is least, as soon as it sees the job. For
# the job's first {head_start_s} s (the grace, two looks of the provisioner and a negotiation) it therefore takes no
# drone's slot by force, or twice as many drones would go. After that it does. (QDate is then significant: jobs
# submitted at different times are negotiated apart. If that costs the schedd too much, set it to 0 in a later file.)
PROVISIONER_HEAD_START = {head_start_s}
PROVISIONER_WAITED = (MY.DroneId =?= undefined || $(PROVISIONER_BACKFILL) || \\
    time() - (TARGET.QDate ?: 0) >= $(PROVISIONER_HEAD_START))
START = ($(START)) && $(PROVISIONER_WAITED)
"""


def _central(backfill: str) -> str:
    return f"""\
# ---- Owner's priority (central manager)
#
# RANK decides, so the negotiator must consider preemption; a drone never preempts anybody, whatever its user's
# priority.
NEGOTIATOR_CONSIDER_PREEMPTION = True
PREEMPTION_REQUIREMENTS = ($(PREEMPTION_REQUIREMENTS:False)) && !{backfill}
#
# A job that is larger than any one drone's slot cannot preempt: the negotiator looks at one slot at a time. The
# provisioner therefore asks drones to leave for such a job, a set of one node that makes room for it, with all of their
# grace. ALLOW_PSLOT_PREEMPTION = True would let the negotiator put slots together too, but the drones on them then get
# no SIGTERM at all: they are killed, and their jobs' work since the last checkpoint is lost. It is left as it is.
"""


# ------------------------------------------------------------------------------------------------------------ oddities


def _foot(policy: SitePolicy, types: Sequence[DroneType]) -> str:
    """Drone types that no reserve covers: said where the admin reads."""
    uncovered = [
        f"# Drone type {kind.name} takes {asked:g} {what} per GPU and no reserve keeps that much ({most} at most): once"
        " CPU work\n# has filled the rest of a node, the last free GPUs there get no such drone."
        for kind in types
        if (gpus := shape(kind).gpus)
        for what, asked, most in (
            ("CPUs", kind.cpus / gpus, max((r.cpus for r in policy.blocking), default=0)),
            ("MiB of memory", kind.memory_mib / gpus, max((r.memory_mib for r in policy.blocking), default=0)),
            ("MiB of disk", kind.disk_mib / gpus, max((r.disk_mib for r in policy.blocking), default=0)),
        )
        if 0 < most < asked
    ]
    return "\n".join([*uncovered, "# ---- end"]) + "\n"
