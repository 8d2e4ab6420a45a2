"""Blocking at the site, as HTCondor configuration, and the audit of the configuration that runs there.

The configuration is added to the site's own (``config.d``): its START, RANK and the rest stay in force. The audit
submits nothing. A startd publishes its START, RANK and the rest in its ads; they are evaluated here, on the node as it
would be if it were empty, for a job without a GPU that takes one unit more than the reserve leaves it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import classad2

from adapters.htcondor.classads import Ad, as_number, evaluated, expression, holds, source
from adapters.htcondor.site.nodes import (
    MachineSlot,
    PoolMachine,
    SlotResources,
    could_host,
    drone_job,
    request,
    shape,
    start_of,
)
from adapters.shared.printing import printable
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, ReserveWhen, SitePolicy

BACKFILL = "(TARGET.ProvisionerController =!= undefined || TARGET.IsBackfill =?= True)"
"""True for a drone's job, at startd and negotiator. Users who lie about it only put themselves last."""
USES_RESERVE = "ProvisionerUsesReserve"
"""Job attribute of CPU drones that may use what free GPUs keep, while no GPU job waits in the overlay."""
JOB_ATTRS = ("IsBackfill", "ProvisionerController", "DroneId")
MEMORY_QUANTUM_MIB = 128
"""The startd rounds what a job asks for up to this (MODIFY_REQUEST_EXPR_REQUESTMEMORY)."""
DISK_QUANTUM_KIB = 1024
OWNER_RANK = 1_000_000
"""Rank that other jobs have beyond that of drones. Differences by the site's own RANK are smaller, and still count."""

HEAD_START_S = 90
"""Two ticks of 15 s and a negotiation cycle of 60 s, HTCondor's and our own default; the grace comes on top."""

_IN_NAMES = string.ascii_letters + string.digits + "._-"


def render(policy: SitePolicy, types: Iterable[DroneType], *, backfill: str = BACKFILL) -> str:
    """Return configuration that enforces ``policy.blocking`` and the owner's priority; the same for the same policy.

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
        *(f"#   {line}" for line in _reserve_lines(reserves)),
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


def _reserve_lines(reserves: Sequence[Reserve]) -> Iterator[str]:
    for reserve in reserves:
        sizes = [
            *([f"{reserve.cpus} CPUs"] if reserve.cpus else []),
            *([f"{reserve.memory_mib} MiB of memory"] if reserve.memory_mib else []),
            *([f"{reserve.disk_mib} MiB of disk"] if reserve.disk_mib else []),
        ]
        released = ", released while no GPU job waits" if reserve.when is ReserveWhen.GPU_DEMAND else ""
        yield f"{' '.join(reserve.nodes)}: {', '.join(sizes)}{released}"


def _asked(reserves: Sequence[Reserve]) -> Iterator[tuple[str, str, str]]:
    """Yield what a job takes of each resource that some reserve keeps, rounded up as the startd does."""
    if any(r.cpus for r in reserves):
        yield "Cpus", "CPUS", "(TARGET.RequestCpus ?: 1)"
    if any(r.memory_mib for r in reserves):
        yield "Memory", "MEMORY", f"quantize(TARGET.RequestMemory ?: {MEMORY_QUANTUM_MIB}, {{{MEMORY_QUANTUM_MIB}}})"
    if any(r.disk_mib for r in reserves):
        yield "Disk", "DISK", f"quantize(TARGET.RequestDisk ?: {DISK_QUANTUM_KIB}, {{{DISK_QUANTUM_KIB}}})"


def _per_gpu(name: str, reserves: Sequence[Reserve], size: Callable[[Reserve], int], unit: str = "") -> Iterator[str]:
    """Yield one macro: the share of the first reserve whose nodes hold this one."""
    if any(map(size, reserves)):
        if unit:
            yield f"# {unit}"
        yield f"{name} = {_by_class(reserves, lambda r: str(size(r)), '0')}"


def _by_class(reserves: Sequence[Reserve], text: Callable[[Reserve], str], otherwise: str) -> str:
    """Return a nested choice by node; it ends where a reserve is for all nodes or the rest makes no difference."""
    if not reserves:
        return otherwise
    first, rest = reserves[0], reserves[1:]
    if "*" in first.nodes:
        return text(first)
    after = _by_class(rest, text, otherwise)
    return after if after == text(first) else f"ifThenElse({_is_node(first.nodes)}, {text(first)}, {after})"


def _is_node(patterns: Sequence[str]) -> str:
    return f'regexp("^({"|".join(map(pattern, patterns))})$", MY.Machine)'


def pattern(node_pattern: str) -> str:
    """Return a node pattern of the site's file as a regular expression.

    It has no backslashes, because ClassAd strings double them.
    """
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
    """Return ``[a-c]`` letter by letter: the two languages differ in what ranges and hyphens mean there."""
    fitting = "".join(c for c in _IN_NAMES if fnmatchcase(c, brackets))
    return f"[{fitting}]" if fitting else "(?!)"


def _released(reserves: Sequence[Reserve]) -> list[str]:
    if not any(r.when is ReserveWhen.GPU_DEMAND for r in reserves):
        return []
    where = _by_class(reserves, lambda r: "True" if r.when is ReserveWhen.GPU_DEMAND else "False", "False")
    return [
        "# While no GPU job waits in the overlay the provisioner's own CPU drones may use the share; it asks them to",
        "# leave when one does. Any user can write the mark into their job: say in PROVISIONER_TRUSTED_JOBS, in a file",
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
    """Return the part of START that gives drones time to leave for a waiting job.

    Seen with real pools: asked and preempted at once, twice as many drones leave as the owner needs, for the negotiator
    does not know that room is being made. It is in START of the drone's own slot, not in RANK: a claim keeps the rank
    that it began with, and a rank that grows with age lets the owner's jobs throw out each other (seen too).
    """
    if not policy.preempt_proactively:
        return ""
    head_start_s = round(policy.grace_s) + HEAD_START_S
    return f"""\
#
# The provisioner asks drones to leave for a waiting job, those whose work is least, as soon as it sees the job. For
# the job's first {head_start_s} s (the grace, two polls of the provisioner and a negotiation) it therefore takes no
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
    """Return the end of the text, with comments on drone types that no reserve covers."""
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


_DRONE_ATTRIBUTES: Mapping[str, object] = {"ProvisionerController": "audit", "DroneId": "audit-0"}
_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\btrue\b|\bfalse\b|(?<![\w."])\d+(?![\w."])', re.IGNORECASE)
_MAX_IDENTITY_TRIES = 200
"""Values tried for attributes of jobs that START looks at, per probe."""


class _AuditedResource(NamedTuple):
    """One resource, in the unit in which jobs ask for it."""

    name: str
    request: str
    unit: str
    attribute: str
    """Its name in a reserve and in resources of slots."""
    per_unit: int = 1

    def of(self, amount: Reserve | SlotResources) -> int:
        return int(getattr(amount, self.attribute)) * self.per_unit


_AUDITED_RESOURCES = (
    _AuditedResource("cpus", "RequestCpus", "CPUs", "cpus"),
    _AuditedResource("memory", "RequestMemory", "MiB", "memory_mib"),
    _AuditedResource("disk", "RequestDisk", "KiB", "disk_mib", 1024),
)


def gaps(
    machines: Sequence[PoolMachine],
    policy: SitePolicy,
    types: Iterable[DroneType] = (),
    requirements: Mapping[str, str] = {},
    drone: Mapping[str, object] = {},
) -> tuple[AuditFinding, ...]:
    """Return every gap that the slot ads show, by node; one per node and dimension.

    ``requirements``: by type name, the site admin's requirements on a slot. ``drone``: attributes that the drones' jobs
    have beside the usual ones.
    """
    probe = {**_DRONE_ATTRIBUTES, **drone}
    kinds = tuple(types)
    found: dict[tuple[str, str], AuditFinding] = {}
    for machine in machines:
        for slot in machine.slots:
            for gap in _of_place(machine, slot, policy, kinds, requirements, probe):
                found.setdefault((gap.node, gap.dimension), gap)
    return (*found.values(), *_idle_patterns(machines, policy))


def _of_place(
    machine: PoolMachine,
    slot: MachineSlot,
    policy: SitePolicy,
    types: Sequence[DroneType],
    requirements: Mapping[str, str],
    drone: Mapping[str, object],
) -> Iterator[AuditFinding]:
    reserve = next((r for r in policy.blocking if any(fnmatchcase(machine.name, p) for p in r.nodes)), None)
    if not start_of(slot):
        yield AuditFinding(
            machine.name, "start", "the slot ads do not contain START: what the node enforces cannot be seen from here"
        )
        return
    if reserve is not None and slot.all.gpus:
        for dimension in _AUDITED_RESOURCES:
            if dimension.of(reserve):
                yield from _reserve_gap(machine, slot, reserve, dimension, policy.site)
    hosted = [kind for kind in types if could_host(slot, kind, drone_job(kind, drone), requirements.get(kind.name, ""))]
    yield from _drone_gaps(machine, slot, hosted, drone)
    if hosted:
        yield from _preemption_gaps(machine, slot, policy, drone)


def _repair(site: str) -> str:
    return f"`provisioner render blocking --site {site}` prints what the node needs"


# ----------------------------------------------------------------------------------------------------------- blocking


def _reserve_gap(
    machine: PoolMachine, slot: MachineSlot, reserve: Reserve, dimension: _AuditedResource, site: str
) -> Iterator[AuditFinding]:
    gpus = slot.all.gpus
    there, wanted = dimension.of(slot.all), dimension.of(reserve) * gpus
    kept = f"{gpus} free GPUs keep {{}} of {there} {dimension.unit}, wanted {wanted}"
    if wanted > there:
        yield AuditFinding(
            machine.name,
            dimension.name,
            f"{kept.format('at most all')}: more than the node has; write at most {there // gpus} per GPU into"
            " `blocking` for it",
        )
        return
    for free in dict.fromkeys((gpus, 1)):
        state = _with_free(slot, free)
        least_refused = there - dimension.of(reserve) * free + 1
        whose = _accepted(state, slot, dimension, max(least_refused, 1))
        if whose is None:
            continue
        most = _most_accepted(state, slot, dimension, least_refused, there, whose)
        keeps, wants = max(0, there - most), dimension.of(reserve) * free
        of_whom = f" (of jobs with {whose[0]} == {classad2.ClassAd({'x': whose[1]}).lookup('x')})" if whose else ""
        yield AuditFinding(
            machine.name,
            dimension.name,
            printable(
                f"{free} free GPUs keep {keeps} of {there} {dimension.unit}, wanted {wants}: START takes a job without"
                f" GPU of {most} {dimension.unit}{of_whom}; {_repair(site)}",
                400,
            ),
        )
        return


def _with_free(slot: MachineSlot, gpus: int) -> Ad:
    """Return the empty slot with only so many GPUs still free."""
    if gpus == slot.all.gpus:
        return slot.ad
    state = classad2.ClassAd()
    state.update(slot.ad)
    state["GPUs"] = gpus
    return state


_Whose = tuple[str, object] | tuple[()]


def _accepted(state: Ad, slot: MachineSlot, dimension: _AuditedResource, size: int) -> _Whose | None:
    """Return () if START takes a job without GPU of this size from anybody.

    If it takes one only of some jobs, return an attribute and value of theirs. None if it takes none that was tried.
    """
    start = start_of(slot)
    if holds(expression(start), state, _cpu_job(dimension, size)):
        return ()
    for name, found in _identities(start, state):
        job = _cpu_job(dimension, size)
        job[name] = found
        if holds(expression(start), state, job):
            return (name, found)
    return None


def _most_accepted(
    state: Ad, slot: MachineSlot, dimension: _AuditedResource, low: int, high: int, whose: _Whose
) -> int:
    """Return the size of the largest job that START takes, which is at least ``low``."""
    start = expression(start_of(slot))
    low = max(low, 1)
    while low < high:
        middle = (low + high + 1) // 2
        job = _cpu_job(dimension, middle)
        if whose:
            job[whose[0]] = whose[1]
        low, high = (middle, high) if holds(start, state, job) else (low, middle - 1)
    return low


def _cpu_job(dimension: _AuditedResource, size: int) -> Ad:
    job = request(
        SlotResources(cpus=1, memory_mib=MEMORY_QUANTUM_MIB, disk_mib=1), {"RequestGPUs": 0, USES_RESERVE: False}
    )
    job[dimension.request] = size
    return job


def _identities(start: str, state: Ad) -> Iterator[tuple[str, object]]:
    """Yield attributes of a job that START looks at beside its size, each with the values that START mentions."""
    parsed = expression(start)
    if parsed is None:
        return
    names = {
        str(name).partition(".")[2] for name in state.externalRefs(parsed) if str(name).lower().startswith("target.")
    }
    known = {name.lower() for name in _cpu_job(_AUDITED_RESOURCES[0], 1)}
    literals = list(dict.fromkeys([*_LITERAL.findall(start), "true", '"anybody"']))
    tries = 0
    for name in sorted(n for n in names if n.lower() not in known):
        for literal in literals:
            tries += 1
            if tries > _MAX_IDENTITY_TRIES:
                return
            yield name, classad2.ExprTree(literal).eval()


# ------------------------------------------------------------------------------------------------- drones and owner


def _drone_gaps(
    machine: PoolMachine, slot: MachineSlot, hosted: Sequence[DroneType], drone: Mapping[str, object]
) -> Iterator[AuditFinding]:
    """Yield drone types that START refuses.

    CPU drones are left out: they find no room where the reserve is all that there is, and shall not.
    """
    start = expression(start_of(slot))
    refused = [
        kind.name for kind in hosted if kind.gpu_milli and evaluated(start, slot.ad, drone_job(kind, drone)) is False
    ]
    if refused:
        yield AuditFinding(
            machine.name,
            "drones",
            f"START refuses drones of type {', '.join(refused)} even on the empty node: make the type as small as what"
            f" `blocking` keeps there per GPU, or see what START wants: `condor_status -af Start {machine.name}`",
        )


def _preemption_gaps(
    machine: PoolMachine, slot: MachineSlot, policy: SitePolicy, drone: Mapping[str, object]
) -> Iterator[AuditFinding]:
    ad, ours, theirs = slot.ad, request(SlotResources(1, 1, 128, 1), drone), request(SlotResources(1, 1, 128, 1))

    def evaluate(name: str, job: Ad) -> float | None:
        text = source(ad, name)
        return as_number(evaluated(expression(text), ad, job)) if text else None

    if (evaluate("Rank", theirs) or 0) <= (evaluate("Rank", ours) or 0):
        yield AuditFinding(
            machine.name,
            "preemption",
            "RANK does not prefer other jobs to drones: the owner's job waits until a drone leaves, unless the"
            f" negotiator preempts by user priority, which cannot be seen from here; {_repair(policy.site)}",
        )
    retirement_s = evaluate("MaxJobRetirementTime", ours) or 0
    if retirement_s > 0:
        yield AuditFinding(
            machine.name,
            "retirement",
            f"a preempted drone may run on for {retirement_s:.0f} s before it gets SIGTERM (MAXJOBRETIREMENTTIME),"
            f" wanted 0: the owner waits so long; {_repair(policy.site)}",
        )
    vacate_s = evaluate("MachineMaxVacateTime", ours)
    if vacate_s is not None and vacate_s < policy.grace_s:
        yield AuditFinding(
            machine.name,
            "grace",
            f"a preempted drone is killed {vacate_s:.0f} s after SIGTERM (MACHINEMAXVACATETIME), `timeouts.grace` says"
            f" {policy.grace_s:.0f} s: drones would promise their jobs time that they do not get;"
            f" {_repair(policy.site)}",
        )


def _idle_patterns(machines: Sequence[PoolMachine], policy: SitePolicy) -> Iterator[AuditFinding]:
    """Yield node patterns of the policy that match no node of the site."""
    for each in dict.fromkeys(p for reserve in policy.blocking for p in reserve.nodes):
        if not any(fnmatchcase(machine.name, each) for machine in machines):
            known = ", ".join(machine.name for machine in machines[:3]) + (", ..." if len(machines) > 3 else "")
            yield AuditFinding(
                each, "nodes", f"no node has such a name (there are: {known or 'none'}); correct `blocking.nodes`"
            )
