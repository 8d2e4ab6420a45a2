"""Blocking at the site, as HTCondor configuration, and the audit of the configuration that runs there.

The configuration is added to the site's own (``config.d``): its START, RANK and the rest stay in
force. The audit submits nothing. A startd publishes its START, RANK and the rest in its ads; they
are evaluated here, on the node as it would be if it were empty, for a job without a GPU that takes
one unit more than the reserve leaves it.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice, product
from typing import NamedTuple

from adapters.htcondor import classad2
from adapters.htcondor.classads import Ad, evaluated, evaluated_number, holds, references, source
from adapters.htcondor.site import nodes
from adapters.htcondor.site.nodes import (
    MachineSlot,
    PoolMachine,
    SlotResources,
    drone_job,
    request,
    start_of,
)
from adapters.shared.printing import printable
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, SitePolicy

BACKFILL = "(TARGET.ProvisionerController =!= undefined || TARGET.IsBackfill =?= True)"
"""True for a drone's job, at startd and negotiator. Users who lie about it only put themselves last."""
JOB_ATTRS = ("IsBackfill", "ProvisionerController", "DroneId")
# the startd rounds what a job asks for up to this (MODIFY_REQUEST_EXPR_REQUESTMEMORY)
MEMORY_QUANTUM_MIB = 128
DISK_QUANTUM_KIB = 1024
OWNER_RANK = 1_000_000
"""Rank that other jobs have beyond that of drones. Differences by the site's own RANK are smaller, and still count."""

HEAD_START_S = 90
"""Two ticks of 15 s and a negotiation cycle of 60 s, HTCondor's and our own default; the grace comes on top."""

_IN_NAMES = string.ascii_letters + string.digits + "._-"


class _KeptResource(NamedTuple):
    """One resource of which free GPUs keep a share."""

    name: str
    slot_attribute: str
    # its name in reserves, drone types and resources of slots; ``kept``: its unit and name there
    attribute: str
    kept: str
    unit: str  # unit in which jobs ask for it
    asked: str  # amount that a job takes of it, rounded up as the startd does
    per_unit: int = 1

    def amount(self, of: Reserve) -> int:
        return int(getattr(of, self.attribute))

    def in_units(self, of: Reserve | SlotResources) -> int:
        return int(getattr(of, self.attribute)) * self.per_unit


_ASKED_MEMORY = f"quantize(TARGET.RequestMemory ?: {MEMORY_QUANTUM_MIB}, {{{MEMORY_QUANTUM_MIB}}})"
_ASKED_DISK = f"quantize(TARGET.RequestDisk ?: {DISK_QUANTUM_KIB}, {{{DISK_QUANTUM_KIB}}})"
_KEPT_RESOURCES = (
    _KeptResource("cpus", "Cpus", "cpus", "CPUs", "CPUs", "(TARGET.RequestCpus ?: 1)"),
    _KeptResource("memory", "Memory", "memory_mib", "MiB of memory", "MiB", _ASKED_MEMORY),
    _KeptResource("disk", "Disk", "disk_mib", "MiB of disk", "KiB", _ASKED_DISK, 1024),
)


def render(policy: SitePolicy) -> str:
    """Return configuration for the nodes and the negotiator; the same for the same policy."""
    head = f"""\
# Blocking and preemption for drones at site {policy.site}: `provisioner render blocking --site {policy.site}`.
# Do not edit: change the site's file and print it again. Put it into config.d of the execute nodes and of the central
# manager, after the site's own files: it adds to their START, RANK, MAXJOBRETIREMENTTIME, MACHINEMAXVACATETIME,
# WANT_VACATE and PREEMPTION_REQUIREMENTS. Then: condor_reconfig.
"""
    nothing = (
        "# ---- Blocking: the site's file has no `blocking`, so nothing is kept for free GPUs.\n"
    )
    blocking = _blocking(policy.blocking) if policy.blocking else nothing
    return "\n".join((head, blocking, _preemption(policy), _CENTRAL, "# ---- end\n"))


def _blocking(reserves: Sequence[Reserve]) -> str:
    lines = [
        "# ---- Blocking (execute nodes)",
        "#",
        "# On a partitionable slot MY.Cpus, MY.Memory, MY.Disk and MY.GPUs are what is left in it. START demands that,",
        "# once this job has started, every GPU that is then still free finds its share:",
    ]
    for reserve in reserves:
        sizes = ", ".join(
            f"{amount} {each.kept}" for each in _KEPT_RESOURCES if (amount := each.amount(reserve))
        )
        lines.append(f"#   {' '.join(reserve.nodes)}: {sizes}")
    lines += ["# It also stops a GPU job that takes more than the other free GPUs can spare.", ""]
    conditions = []
    for resource in _KEPT_RESOURCES:
        if any(map(resource.amount, reserves)):
            # one macro: the share of the first reserve whose nodes hold this one
            share = _by_class(
                reserves, [str(resource.in_units(reserve)) for reserve in reserves], "0"
            )
            lines += [] if resource.unit == "CPUs" else [f"# {resource.unit}"]
            macro = f"PROVISIONER_{resource.name.upper()}_PER_GPU"
            lines += [f"{macro} = {share}"]
            left = f"(MY.{resource.slot_attribute} - {resource.asked})"
            conditions.append(f"{left} >= $({macro}) * $(PROVISIONER_GPUS_LEFT)")
    lines += ["PROVISIONER_GPUS_LEFT = ((MY.GPUs ?: 0) - (TARGET.RequestGPUs ?: 0))"]
    lines += ["PROVISIONER_KEEPS_RESERVE = (" + " && \\\n    ".join(conditions) + ")"]
    lines += ["START = ($(START)) && $(PROVISIONER_KEEPS_RESERVE)"]
    return "\n".join(lines) + "\n"


def _by_class(reserves: Sequence[Reserve], values: Sequence[str], otherwise: str) -> str:
    """Return a nested choice by node; it ends where a reserve is for all nodes or the rest makes no difference."""
    chosen = otherwise
    for reserve, here in reversed(list(zip(reserves, values, strict=True))):
        is_node = f'regexp("^({"|".join(map(pattern, reserve.nodes))})$", MY.Machine)'
        if "*" in reserve.nodes:
            chosen = here
        elif chosen != here:
            chosen = f"ifThenElse({is_node}, {here}, {chosen})"
    return chosen


def pattern(node_pattern: str) -> str:
    """Return a node pattern of the site's file as a regular expression.

    It has no backslashes, because ClassAd strings double them. ``[a-c]`` goes letter by letter: the
    two languages differ in what ranges and hyphens mean there.
    """

    def translated(part: re.Match[str]) -> str:
        if len(part[0]) > 1:
            return (
                f"[{fitting}]"
                if (fitting := "".join(c for c in _IN_NAMES if fnmatchcase(c, part[0])))
                else "(?!)"
            )
        return {"*": ".*", "?": ".", ".": "[.]", "[": "[[]", "]": "[]]"}.get(part[0], part[0])

    return re.sub(r"\[.[^]]*\]|.", translated, node_pattern)


def _preemption(policy: SitePolicy) -> str:
    grace_s = round(policy.grace_s)
    return f"""\
# ---- Owner's priority (execute nodes)
#
# Drones are backfill: any other job takes a drone's slot that it fits (one that wants no GPU would leave the slot's GPU
# without its share, and does not). The drone's job then gets SIGTERM at once and SIGKILL {grace_s} s later. Jobs that
# are no drones are treated as before.
PROVISIONER_BACKFILL = {BACKFILL}
RANK = ($(RANK:0)) + ifThenElse($(PROVISIONER_BACKFILL), 0, {OWNER_RANK})
MAXJOBRETIREMENTTIME = ifThenElse($(PROVISIONER_BACKFILL), 0, $(MAXJOBRETIREMENTTIME:0))
MACHINEMAXVACATETIME = ifThenElse($(PROVISIONER_BACKFILL), {grace_s}, $(MACHINEMAXVACATETIME))
WANT_VACATE = $(PROVISIONER_BACKFILL) || ($(WANT_VACATE))
# What jobs tell of themselves in the ads of their slots.
STARTD_JOB_ATTRS = $(STARTD_JOB_ATTRS) {" ".join(JOB_ATTRS)}
{_head_start(policy)}"""


def _head_start(policy: SitePolicy) -> str:
    """Return the part of START that gives drones time to leave for a waiting job.

    Seen with real pools: asked and preempted at once, twice as many drones leave as the owner
    needs, for the negotiator does not know that room is being made. It is in START of the drone's
    own slot, not in RANK: a claim keeps the rank that it began with, and a rank that grows with age
    lets the owner's jobs throw out each other (seen too).
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


_CENTRAL = f"""\
# ---- Owner's priority (central manager)
#
# RANK decides, so the negotiator must consider preemption; a drone never preempts anybody, whatever its user's
# priority.
NEGOTIATOR_CONSIDER_PREEMPTION = True
PREEMPTION_REQUIREMENTS = ($(PREEMPTION_REQUIREMENTS:False)) && !{BACKFILL}
#
# A job that is larger than any one drone's slot cannot preempt: the negotiator looks at one slot at a time. The
# provisioner therefore asks drones to leave for such a job, a set of one node that makes room for it, with all of their
# grace. ALLOW_PSLOT_PREEMPTION = True would let the negotiator put slots together too, but the drones on them then get
# no SIGTERM at all: they are killed, and their jobs' work since the last checkpoint is lost. It is left as it is.
"""


_DRONE_ATTRIBUTES: Mapping[str, object] = {"ProvisionerController": "audit", "DroneId": "audit-0"}
_LITERAL = re.compile(
    r'"(?:\\.|[^"\\])*"|\btrue\b|\bfalse\b|(?<![\w."])\d+(?![\w."])', re.IGNORECASE
)
_MAX_IDENTITY_TRIES = 200  # values tried for attributes of jobs that START looks at, per probe


def gaps(
    machines: Sequence[PoolMachine],
    policy: SitePolicy,
    types: Iterable[DroneType] = (),
    requirements: Mapping[str, str] = {},
    drone: Mapping[str, object] = {},
) -> tuple[AuditFinding, ...]:
    """Return gaps by node and dimension. ``requirements``: on a slot, by type; ``drone``: more attributes of drones."""
    marks = {**_DRONE_ATTRIBUTES, **drone}
    kinds = tuple(types)
    found: dict[tuple[str, str], AuditFinding] = {}
    for machine in machines:
        for slot in machine.slots:
            hosted = [
                k
                for k in kinds
                if nodes.could_host(slot, k, drone_job(k, marks), requirements.get(k.name, ""))
            ]
            for dimension, message in _slot_gaps(machine.name, slot, policy, hosted, marks):
                found.setdefault(
                    (machine.name, dimension), AuditFinding(machine.name, dimension, message)
                )
    names = [machine.name for machine in machines]
    known = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    unknown = f"no node has such a name (there are: {known or 'none'}); correct `blocking.nodes`"
    patterns = dict.fromkeys(pattern for reserve in policy.blocking for pattern in reserve.nodes)
    idle = (each for each in patterns if not any(fnmatchcase(name, each) for name in names))
    return (*found.values(), *(AuditFinding(each, "nodes", unknown) for each in idle))


def _slot_gaps(
    node: str,
    slot: MachineSlot,
    policy: SitePolicy,
    hosted: Sequence[DroneType],
    marks: Mapping[str, object],
) -> Iterator[tuple[str, str]]:
    """Yield dimension and message of each gap. START may refuse CPU drones where the reserve is all there is."""
    if not start_of(slot):
        yield (
            "start",
            "the slot ads do not contain START: what the node enforces cannot be seen from here",
        )
        return
    repair = f"`provisioner render blocking --site {policy.site}` prints what the node needs"
    reserve = next(
        (r for r in policy.blocking if any(fnmatchcase(node, pattern) for pattern in r.nodes)), None
    )
    if reserve is not None and slot.all.gpus:
        for each in _KEPT_RESOURCES:
            if message := _reserve_gap(slot, each, each.in_units(reserve), repair):
                yield each.name, message
    starts = {
        k.name: evaluated(start_of(slot), slot.ad, drone_job(k, marks))
        for k in hosted
        if k.gpu_milli
    }
    if refused := [name for name, found in starts.items() if found is False]:
        yield (
            "drones",
            f"START refuses drones of type {', '.join(refused)} even on the empty node: make the type as small as what"
            f" `blocking` keeps there per GPU, or see what START wants: `condor_status -af Start {node}`",
        )
    if hosted:
        yield from _preemption_gaps(slot.ad, policy, marks, repair)


def _reserve_gap(slot: MachineSlot, resource: _KeptResource, kept: int, repair: str) -> str:
    """Return how START fails to keep so much of a resource per free GPU; "" if it keeps it, or none is kept."""
    gpus = slot.all.gpus
    there = resource.in_units(slot.all)
    unit = resource.unit
    if kept * gpus > there:
        return (
            f"{gpus} free GPUs keep at most all of {there} {unit}, wanted {kept * gpus}: more than the node has; write"
            f" at most {there // gpus} per GPU into `blocking` for it"
        )

    def takes(size: int, free: int, whose: Mapping[str, object]) -> bool:
        state = classad2.ClassAd()
        state.update(slot.ad)
        state["GPUs"] = free
        return holds(
            start_of(slot), state, _cpu_job({f"Request{resource.slot_attribute}": size, **whose})
        )

    for free in dict.fromkeys((gpus, 1)) if kept else ():
        least_refused = max(there - kept * free + 1, 1)
        tried = chain([{}], _identities(start_of(slot), slot.ad))
        whose = next((each for each in tried if takes(least_refused, free, each)), None)
        if whose is None:
            continue
        larger = range(least_refused, there + 1)
        most = (
            least_refused
            - 1
            + bisect_left(larger, True, key=lambda size: not takes(size, free, whose))
        )
        literals = {
            name: classad2.ClassAd({"x": found}).lookup("x") for name, found in whose.items()
        }
        of_whom = "".join(
            f" (of jobs with {name} == {literal})" for name, literal in literals.items()
        )
        return printable(
            f"{free} free GPUs keep {max(0, there - most)} of {there} {unit}, wanted {kept * free}: START takes a job"
            f" without GPU of {most} {unit}{of_whom}; {repair}",
            400,
        )
    return ""


def _cpu_job(more: Mapping[str, object]) -> Ad:
    smallest = SlotResources(cpus=1, memory_mib=MEMORY_QUANTUM_MIB, disk_mib=1)
    return request(smallest, {"RequestGPUs": 0, **more})


def _identities(start: str, state: Ad) -> Iterator[Mapping[str, object]]:
    """Yield attributes of a job that START looks at beside its size, each with the values that START mentions."""
    names = [name.partition(".") for name in references(start, state)]
    known = {name.lower() for name in _cpu_job({})}
    wanted = sorted(
        {
            name
            for scope, _, name in names
            if scope.lower() == "target" and name.lower() not in known
        }
    )
    literals = dict.fromkeys([*_LITERAL.findall(start), "true", '"anybody"'])
    for name, literal in islice(product(wanted, literals), _MAX_IDENTITY_TRIES):
        yield {name: classad2.ExprTree(literal).eval()}


def _preemption_gaps(
    ad: Ad, policy: SitePolicy, marks: Mapping[str, object], repair: str
) -> Iterator[tuple[str, str]]:
    ours, theirs = (request(SlotResources(1, 1, 128, 1), more) for more in (marks, {}))
    our_rank, their_rank = (
        evaluated_number(source(ad, "Rank"), ad, job) or 0 for job in (ours, theirs)
    )
    retirement_s = evaluated_number(source(ad, "MaxJobRetirementTime"), ad, ours) or 0
    vacate_s = evaluated_number(source(ad, "MachineMaxVacateTime"), ad, ours)
    if their_rank <= our_rank:
        yield (
            "preemption",
            "RANK does not prefer other jobs to drones: the owner's job waits until a drone leaves, unless the"
            f" negotiator preempts by user priority, which cannot be seen from here; {repair}",
        )
    if retirement_s > 0:
        yield (
            "retirement",
            f"a preempted drone may run on for {retirement_s:.0f} s before it gets SIGTERM (MAXJOBRETIREMENTTIME),"
            f" wanted 0: the owner waits so long; {repair}",
        )
    if vacate_s is not None and vacate_s < policy.grace_s:
        yield (
            "grace",
            f"a preempted drone is killed {vacate_s:.0f} s after SIGTERM (MACHINEMAXVACATETIME), `timeouts.grace` says"
            f" {policy.grace_s:.0f} s: drones would promise their jobs time that they do not get; {repair}",
        )
