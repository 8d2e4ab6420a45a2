"""Where the site's running configuration does not do what the policy says.

Nothing is submitted. A startd publishes its START, RANK and the rest in its ads; they are evaluated here, on the node
as it would be if it were empty, for a job without a GPU that takes one unit more than the reserve leaves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import classad2

from adapters.htcondor.site.blocking import MEMORY_QUANTUM_MIB, USES_RESERVE
from adapters.htcondor.site.matching import Amount, Host, Place, request, start_of
from adapters.htcondor.site.nodes import could_host, shape
from adapters.shared.htcondor.ads import Ad, as_number, evaluated, expression, holds, source
from adapters.shared.printing import printable
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, SitePolicy

_DRONE: Mapping[str, object] = {"ProvisionerController": "audit", "DroneId": "audit-0"}
_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\btrue\b|\bfalse\b|(?<![\w."])\d+(?![\w."])', re.IGNORECASE)
_MOST_TRIES = 200
"""Values tried for attributes of jobs that START looks at, per probe."""


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One resource, in the unit in which jobs ask for it."""

    name: str
    request: str
    unit: str

    def kept_per_gpu(self, reserve: Reserve) -> int:
        match self.name:
            case "cpus":
                return reserve.cpus
            case "memory":
                return reserve.memory_mib
            case _:
                return reserve.disk_mib * 1024

    def of(self, amount: Amount) -> int:
        match self.name:
            case "cpus":
                return amount.cpus
            case "memory":
                return amount.memory_mib
            case _:
                return amount.disk_mib * 1024


_DIMENSIONS = (
    _Dimension("cpus", "RequestCpus", "CPUs"),
    _Dimension("memory", "RequestMemory", "MiB"),
    _Dimension("disk", "RequestDisk", "KiB"),
)


def gaps(
    hosts: Sequence[Host],
    policy: SitePolicy,
    types: Iterable[DroneType] = (),
    requirements: Mapping[str, str] = {},
    drone: Mapping[str, object] = {},
) -> tuple[AuditFinding, ...]:
    """Every gap that the slot ads show, by node; one per node and dimension.

    ``requirements``: by type name, what the site's admin demands of a slot. ``drone``: attributes that the drones' jobs
    have beside the usual ones.
    """
    probe = {**_DRONE, **drone}
    kinds = tuple(types)
    found: dict[tuple[str, str], AuditFinding] = {}
    for host in hosts:
        for place in host.places:
            for gap in _of_place(host, place, policy, kinds, requirements, probe):
                found.setdefault((gap.node, gap.dimension), gap)
    return (*found.values(), *_idle_patterns(hosts, policy))


def _of_place(
    host: Host,
    place: Place,
    policy: SitePolicy,
    types: Sequence[DroneType],
    requirements: Mapping[str, str],
    drone: Mapping[str, object],
) -> Iterator[AuditFinding]:
    reserve = next((r for r in policy.blocking if any(fnmatchcase(host.name, p) for p in r.nodes)), None)
    if not start_of(place):
        yield AuditFinding(
            host.name, "start", "the slot ads do not tell START: what the node enforces cannot be seen from here"
        )
        return
    if reserve is not None and place.all.gpus:
        for dimension in _DIMENSIONS:
            if dimension.kept_per_gpu(reserve):
                yield from _reserve_gap(host, place, reserve, dimension, policy.site)
    hosted = [kind for kind in types if could_host(place, kind, _job(kind, drone), requirements.get(kind.name, ""))]
    yield from _drone_gaps(host, place, hosted, drone)
    if hosted:
        yield from _preemption_gaps(host, place, policy, drone)


def _repair(site: str) -> str:
    return f"`provisioner render blocking --site {site}` prints what the node needs"


# ----------------------------------------------------------------------------------------------------------- blocking


def _reserve_gap(
    host: Host, place: Place, reserve: Reserve, dimension: _Dimension, site: str
) -> Iterator[AuditFinding]:
    gpus = place.all.gpus
    there, wanted = dimension.of(place.all), dimension.kept_per_gpu(reserve) * gpus
    told = f"{gpus} free GPUs keep {{}} of {there} {dimension.unit}, wanted {wanted}"
    if wanted > there:
        yield AuditFinding(
            host.name,
            dimension.name,
            f"{told.format('at most all')}: more than the node has; write at most {there // gpus} per GPU into"
            " `blocking` for it",
        )
        return
    for free in dict.fromkeys((gpus, 1)):
        state = _with_free(place, free)
        least_refused = there - dimension.kept_per_gpu(reserve) * free + 1
        whose = _accepted(state, place, dimension, max(least_refused, 1))
        if whose is None:
            continue
        most = _most_accepted(state, place, dimension, least_refused, there, whose)
        keeps, wants = max(0, there - most), dimension.kept_per_gpu(reserve) * free
        of_whom = f" (of jobs with {whose[0]} == {classad2.ClassAd({'x': whose[1]}).lookup('x')})" if whose else ""
        yield AuditFinding(
            host.name,
            dimension.name,
            printable(
                f"{free} free GPUs keep {keeps} of {there} {dimension.unit}, wanted {wants}: START takes a job without"
                f" GPU of {most} {dimension.unit}{of_whom}; {_repair(site)}",
                400,
            ),
        )
        return


def _with_free(place: Place, gpus: int) -> Ad:
    """The empty place with but so many GPUs still free."""
    if gpus == place.all.gpus:
        return place.ad
    state = classad2.ClassAd()
    state.update(place.ad)
    state["GPUs"] = gpus
    return state


_Whose = tuple[str, object] | tuple[()]


def _accepted(state: Ad, place: Place, dimension: _Dimension, size: int) -> _Whose | None:
    """Whether START takes a job without GPU of this size: () for anybody's, or an attribute and value of those whose
    it takes. None if it takes none that could be thought of."""
    start = start_of(place)
    if holds(expression(start), state, _cpu_job(dimension, size)):
        return ()
    for name, found in _identities(start, state):
        job = _cpu_job(dimension, size)
        job[name] = found
        if holds(expression(start), state, job):
            return (name, found)
    return None


def _most_accepted(state: Ad, place: Place, dimension: _Dimension, low: int, high: int, whose: _Whose) -> int:
    """The largest job that START takes, at least ``low``, which it does take."""
    start = expression(start_of(place))
    low = max(low, 1)
    while low < high:
        middle = (low + high + 1) // 2
        job = _cpu_job(dimension, middle)
        if whose:
            job[whose[0]] = whose[1]
        low, high = (middle, high) if holds(start, state, job) else (low, middle - 1)
    return low


def _cpu_job(dimension: _Dimension, size: int) -> Ad:
    job = request(Amount(cpus=1, memory_mib=MEMORY_QUANTUM_MIB, disk_mib=1), {"RequestGPUs": 0, USES_RESERVE: False})
    job[dimension.request] = size
    return job


def _identities(start: str, state: Ad) -> Iterator[tuple[str, object]]:
    """Attributes of a job that START looks at beside its size, each with the values that START itself mentions."""
    parsed = expression(start)
    if parsed is None:
        return
    names = {
        str(name).partition(".")[2] for name in state.externalRefs(parsed) if str(name).lower().startswith("target.")
    }
    known = {name.lower() for name in _cpu_job(_DIMENSIONS[0], 1)}
    literals = list(dict.fromkeys([*_LITERAL.findall(start), "true", '"anybody"']))
    tries = 0
    for name in sorted(n for n in names if n.lower() not in known):
        for literal in literals:
            tries += 1
            if tries > _MOST_TRIES:
                return
            yield name, classad2.ExprTree(literal).eval()


# ------------------------------------------------------------------------------------------------- drones and owner


def _job(kind: DroneType, drone: Mapping[str, object]) -> Ad:
    return request(shape(kind), {"DroneType": kind.name, "DroneSite": kind.site, **drone})


def _drone_gaps(
    host: Host, place: Place, hosted: Sequence[DroneType], drone: Mapping[str, object]
) -> Iterator[AuditFinding]:
    """CPU drones are left out: they find no room where the reserve is all that there is, and shall not."""
    start = expression(start_of(place))
    refused = [
        kind.name for kind in hosted if kind.gpu_milli and evaluated(start, place.ad, _job(kind, drone)) is False
    ]
    if refused:
        yield AuditFinding(
            host.name,
            "drones",
            f"START refuses drones of type {', '.join(refused)} even on the empty node: make the type as small as what"
            f" `blocking` keeps there per GPU, or see what START wants: `condor_status -af Start {host.name}`",
        )


def _preemption_gaps(
    host: Host, place: Place, policy: SitePolicy, drone: Mapping[str, object]
) -> Iterator[AuditFinding]:
    ad, ours, theirs = place.ad, request(Amount(1, 1, 128, 1), drone), request(Amount(1, 1, 128, 1))

    def told(name: str, job: Ad) -> float | None:
        text = source(ad, name)
        return as_number(evaluated(expression(text), ad, job)) if text else None

    if (told("Rank", theirs) or 0) <= (told("Rank", ours) or 0):
        yield AuditFinding(
            host.name,
            "preemption",
            "RANK does not prefer other jobs to drones: the owner's job waits until a drone leaves, unless the"
            f" negotiator preempts by user priority, which cannot be seen from here; {_repair(policy.site)}",
        )
    retirement_s = told("MaxJobRetirementTime", ours) or 0
    if retirement_s > 0:
        yield AuditFinding(
            host.name,
            "retirement",
            f"a preempted drone may run on for {retirement_s:.0f} s before it is told (MAXJOBRETIREMENTTIME), wanted 0:"
            f" the owner waits so long; {_repair(policy.site)}",
        )
    vacate_s = told("MachineMaxVacateTime", ours)
    if vacate_s is not None and vacate_s < policy.grace_s:
        yield AuditFinding(
            host.name,
            "grace",
            f"a preempted drone is killed {vacate_s:.0f} s after SIGTERM (MACHINEMAXVACATETIME), `timeouts.grace` says"
            f" {policy.grace_s:.0f} s: drones would promise their jobs time that they do not get;"
            f" {_repair(policy.site)}",
        )


def _idle_patterns(hosts: Sequence[Host], policy: SitePolicy) -> Iterator[AuditFinding]:
    """Node patterns of the policy that no node of the site has."""
    for each in dict.fromkeys(p for reserve in policy.blocking for p in reserve.nodes):
        if not any(fnmatchcase(host.name, each) for host in hosts):
            known = ", ".join(host.name for host in hosts[:3]) + (", ..." if len(hosts) > 3 else "")
            yield AuditFinding(
                each, "nodes", f"no node has such a name (there are: {known or 'none'}); correct `blocking.nodes`"
            )
