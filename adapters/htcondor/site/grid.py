"""Drones through a computing element: jobs that HTCondor's gridmanager hands to an HTCondor-CE or to an ARC."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from adapters.htcondor.classads import RUNNING, Ad, moment, our_moment, text, whole
from provisioner.interfaces import OptionFinding
from provisioner.model import DroneType, FaultKind

GRID_PROJECTION = "JobUniverse GridJobId GridJobStatus GridResourceUnavailableTime Managed"
"""Attributes of jobs that this module reads."""
BACK_IN_QUEUE = "(JobStatus == 1 && (LastJobStatus == 2 || (NumJobStarts ?: 0) > 1))"
"""A job that waits for its second life. A JobRouter mirrors the date of the first start before it says that
the job runs, and the count late."""
_GRID_UNIVERSE = 9
_MIB = 1 << 20
_ENDED_THERE = frozenset(
    {"COMPLETED", "FINISHING", "FINISHED", "FAILED", "EXECUTED", "EXITINGLRMS"}
)
"""GridJobStatus of a drone that has ended, while its files are brought back."""
_HOLD_WORDS = (
    (r"proxy|token|credential|authenticat|denied|authoriz|\b40[13]\b", FaultKind.DENIED),
    (r"MAX_JOBS|quota|limit|exceed", FaultKind.QUOTA),
    (r"^ARC job failed", FaultKind.NODE),
    (r"connect|locating schedd|time.?out|timed out|stage-|\b50\d\b", FaultKind.DOWN),
    (r"", FaultKind.CONFIG),
)
"""Kinds by the words of the gridmanager's own holds, first match."""
_REFUSED = "the computing element refuses the credentials"


def is_grid_job(ad: Ad) -> bool:
    return whole(ad, "JobUniverse") == _GRID_UNIVERSE


def has_started(ad: Ad) -> bool:
    """Return True if the job of a computing element has begun its one life there."""
    began = moment(ad, "JobCurrentStartDate") > 0 or whole(ad, "JobStatus") == RUNNING
    return is_grid_job(ad) and began


def waits(ad: Ad) -> bool:
    """Return True if an idle job of a computing element has not run there before."""
    was_there = whole(ad, "LastJobStatus") == RUNNING or whole(ad, "NumJobStarts") > 1
    return is_grid_job(ad) and not was_there


def obstacle(ad: Ad) -> FaultKind | None:
    """Return the obstacle that keeps a job waiting, and that others would meet as well."""
    return FaultKind.DOWN if moment(ad, "GridResourceUnavailableTime") else None


def waiting(ad: Ad) -> str:
    """Return the reason for which a job waits."""
    if obstacle(ad):
        return "the computing element does not answer, or refuses the credentials"
    if text(ad, "GridJobId"):
        return f"waits at the computing element: {text(ad, 'GridJobStatus', 40) or 'sent'}"
    return "waits to be sent to the computing element"


def running(ad: Ad) -> str:
    return "its files are brought back" if text(ad, "GridJobStatus") in _ENDED_THERE else ""


def leaving(ad: Ad, now: float, grace_s: float) -> str:
    """Return the reason for which a removed job may still run at its computing element; "" if it does not.

    The gridmanager lets go of a job once the element has confirmed its removal. The drone has its
    grace from then on: counted from our order, as nothing tells when that was.
    """
    if text(ad, "Managed") == "External":
        return "removed; the computing element has not confirmed it yet"
    left_s = our_moment(ad, "EnteredCurrentStatus", now) + grace_s - now
    return f"removed; gone within {round(left_s)} s" if has_started(ad) and left_s > 0 else ""


def is_gone(why: str) -> bool:
    """Return True if a hold says that somebody removed the job at its computing element."""
    return "disappeared from remote" in why


def hold_kind(why: str) -> FaultKind:
    """Return the kind of fault behind a hold of the gridmanager's own, which has no code."""
    return next(kind for words, kind in _HOLD_WORDS if re.search(words, why, re.IGNORECASE))


def held(why: str, kind: FaultKind) -> str:
    """Return the sentence for such a hold."""
    return f"{_REFUSED if kind is FaultKind.DENIED else 'held by the gridmanager'}: {why}"


def silence(ads: Iterable[Ad], now: float) -> Iterator[str]:
    """Yield a notice if a computing element does not answer."""
    since = [at for ad in ads if (at := our_moment(ad, "GridResourceUnavailableTime", now))]
    if since:
        yield (
            f"the computing element has not answered for {round(now - min(since))} s: "
            f"{len(since)} drones are listed as they were"
        )


# ------------------------------------------------------------------------------------------ submission


def bare_names(commands: Mapping[str, str]) -> Mapping[str, str]:
    """Return submit commands by their names in small letters, attributes without ``+`` or ``My.``."""
    return {re.sub(r"^(\+|my\.)", "", name.lower()): value for name, value in commands.items()}


def is_arc(commands: Mapping[str, str]) -> bool:
    return bare_names(commands).get("grid_resource", "").startswith("arc ")


def request(kind: DroneType, commands: Mapping[str, str]) -> dict[str, str]:
    """Return submit commands by which the computing element learns what a drone asks for.

    ``commands`` of the site's admin take the place of ours.
    """
    given = bare_names(commands)
    if is_arc(commands):
        return {"arc_resources": _arc_resources(kind, given.get("arc_resources", ""))}
    found = {
        f"My.{name}": str(value)
        for name, value in _pilots_attributes(kind).items()
        if name.lower() not in given
    }
    # the element gets none of our policy otherwise, and would start an evicted job again
    found["My.remote_PeriodicRemove"] = BACK_IN_QUEUE
    return found


def _pilots_attributes(kind: DroneType) -> Mapping[str, int]:
    """Return what pilots ask an HTCondor-CE for, beside the usual requests; routes may read it."""
    found = {
        "xcount": kind.cpus,
        "maxMemory": kind.memory_mib,
    }
    if kind.walltime_s:
        found["maxWallTime"] = math.ceil(kind.walltime_s / 60)
    return found


def _arc_resources(kind: DroneType, admins: str) -> str:
    """Return elements of ADL, which count memory and disk in bytes, and memory for each core."""
    wanted = {
        "IndividualPhysicalMemory": math.ceil(kind.memory_mib / kind.cpus) * _MIB,
        "DiskSpaceRequirement": kind.disk_mib * _MIB,
        "WallTime": round(kind.walltime_s),
    }
    ours = [
        f"<{name}>{value}</{name}>"
        for name, value in wanted.items()
        if value and f"<{name}>" not in admins
    ]
    return "".join([*ours, admins])


# --------------------------------------------------------------------------------------- configuration

_GRID_RESOURCE = re.compile(r"condor \S+ [^\s/]+:\d{1,5}|arc https://\S+")
_ARC_CREDENTIALS = {"x509userproxy", "use_x509userproxy", "scitokens_file", "use_scitokens"}
_HIDDEN = "cannot be seen through a computing element"
_USELESS_OPTIONS = {
    "owner": f"`owner`: the owner's queues {_HIDDEN}: remove it",
    "slot_max_age": f"`slot_max_age`: slots {_HIDDEN}: remove it",
    "lease": "`lease`: the computing element decides how long a drone outlives a cut: remove it",
}
NODES_HIDDEN = (
    f"nodes {_HIDDEN}; its routes choose them. Remove it, and set an attribute that a route reads "
    "(`+remote_queue: '\"gpu\"'`), or with ARC `batch_queue` or `arc_rte`"
)


def is_grid(commands: Mapping[str, str]) -> bool:
    """Return True if drones with these submit commands run behind a computing element."""
    return bare_names(commands).get("universe", "").strip().lower() == "grid"


def conflicts(commands: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield submit commands of one type that cannot work in the grid universe: name and message."""
    given = bare_names(commands)
    if not _GRID_RESOURCE.fullmatch(given.get("grid_resource", "")):
        message = (
            "`grid_resource` is wanted with `universe: grid`: write `condor NAME HOST:9619` for an "
            "HTCondor-CE, or `arc https://HOST:443/arex/rest/1.0`"
        )
        yield "grid_resource" if "grid_resource" in given else "universe", message
    if is_arc(commands) and not _ARC_CREDENTIALS & given.keys():
        message = (
            "an ARC wants credentials: write `scitokens_file: /path`, or `x509userproxy: /path`"
        )
        yield "grid_resource", message
    for name in ("requirements", "rank", *(["require_gpus"] if is_arc(commands) else [])):
        if name in given:
            yield name, f"`{name}`: {NODES_HIDDEN}"


def useless_options(given: Iterable[str], kinds: Iterable[DroneType]) -> Iterator[OptionFinding]:
    """Yield options of a site behind a computing element that cannot do anything there."""
    for name in given:
        if name in _USELESS_OPTIONS:
            yield ("options", name), _USELESS_OPTIONS[name]
    if any(kind.kept_cpus or kind.kept_memory_mib or kind.kept_disk_mib for kind in kinds):
        yield ("blocking",), f"`blocking`: free GPUs {_HIDDEN}: remove it"
