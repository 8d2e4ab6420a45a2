"""What Slurm's words mean to us: states, reasons, refusals. One table of each; a word that we do not know means alive,
waiting, refused for an unknown cause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import EndKind, FaultKind, RemoteState

_LONGEST = 300

# -------------------------------------------------------------------------------------------------------------- states


@dataclass(frozen=True, slots=True)
class SlurmStateMapping:
    """One of Slurm's words for the state of a job."""

    state: RemoteState
    why: str = ""
    """For people: of a job that lives, why it does not simply wait or run; of one that ended, how."""
    kind: EndKind | None = None
    """How it ended, if it has."""
    fault: FaultKind | None = None


_PENDING, _RUNNING, _UNKNOWN, _ENDED = (
    RemoteState.PENDING,
    RemoteState.RUNNING,
    RemoteState.UNKNOWN,
    RemoteState.ENDED,
)

STATES: Mapping[str, SlurmStateMapping] = {
    # Base states.
    "PENDING": SlurmStateMapping(_PENDING),
    "RUNNING": SlurmStateMapping(_RUNNING),
    "SUSPENDED": SlurmStateMapping(_UNKNOWN, "suspended by its site"),
    "COMPLETED": SlurmStateMapping(_ENDED, "", EndKind.EXITED),
    "CANCELLED": SlurmStateMapping(_ENDED, "cancelled", EndKind.STOPPED),  # by us; see listing.py for the others
    "FAILED": SlurmStateMapping(_ENDED, "", EndKind.EXITED),
    # It should have left by itself before that: what ends is its life, and nothing is wrong with the node or the type.
    "TIMEOUT": SlurmStateMapping(_ENDED, "its time limit was over", EndKind.STOPPED),
    "NODE_FAIL": SlurmStateMapping(_ENDED, "its node failed", EndKind.FAULT, FaultKind.NODE),
    "PREEMPTED": SlurmStateMapping(_ENDED, "preempted", EndKind.PREEMPTED),
    "BOOT_FAIL": SlurmStateMapping(_ENDED, "its node did not boot", EndKind.FAULT, FaultKind.NODE),
    "DEADLINE": SlurmStateMapping(_ENDED, "its deadline could not be met", EndKind.FAULT, FaultKind.CONFIG),
    # A job in the drone did that: two more in a row and drones of the type are a problem, one is bad luck.
    "OUT_OF_MEMORY": SlurmStateMapping(
        _ENDED, "it took more memory than it had asked for", EndKind.FAULT, FaultKind.DRONE
    ),
    # Flags on top of a base state. Where only one word is told (squeue %T), it is the flag's.
    "CONFIGURING": SlurmStateMapping(_PENDING, "its node is being made ready"),
    "COMPLETING": SlurmStateMapping(_RUNNING, "is being ended"),  # its processes may live, its resources are taken
    "STAGE_OUT": SlurmStateMapping(_RUNNING, "its files are staged out"),
    "RESIZING": SlurmStateMapping(_RUNNING, "is being resized"),
    "SIGNALING": SlurmStateMapping(_RUNNING, "is being signalled"),
    "STOPPED": SlurmStateMapping(_UNKNOWN, "stopped by a signal"),
    "POWER_UP_NODE": SlurmStateMapping(_PENDING, "its node is powered up"),
    "EXPEDITING": SlurmStateMapping(_PENDING, "requeued, and first in its queue"),
    "REQUEUED": SlurmStateMapping(_PENDING, "requeued"),
    "REQUEUE_FED": SlurmStateMapping(_PENDING, "requeued in its federation"),
    "REQUEUE_HOLD": SlurmStateMapping(_PENDING, "requeued and held"),
    "SPECIAL_EXIT": SlurmStateMapping(_PENDING, "requeued and held for its exit status"),
    "RESV_DEL_HOLD": SlurmStateMapping(_PENDING, "held: its reservation was deleted"),
    "REVOKED": SlurmStateMapping(
        _ENDED, "revoked: another cluster of its federation has it", EndKind.FAULT, FaultKind.CONFIG
    ),
    "LAUNCH_FAILED": SlurmStateMapping(_UNKNOWN, "its launch failed"),
    "RECONFIG_FAIL": SlurmStateMapping(_UNKNOWN, "its node could not be reconfigured"),
    "UPDATE_DB": SlurmStateMapping(_UNKNOWN, "Slurm writes it down"),
}
"""All states and flags of 22.05 to 26.05."""

UNFINISHED_STATES = frozenset(word for word, each in STATES.items() if each.state is not _ENDED)
"""Words of jobs that have not ended: they have no exit status."""

_TELLING = (
    "COMPLETING",
    "STAGE_OUT",
    "CONFIGURING",
    "POWER_UP_NODE",
    "STOPPED",
    "REVOKED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "REQUEUED",
    "REQUEUE_FED",
    "EXPEDITING",
)
"""Flags that say more than the base state, the first of them first."""


def map_state(state: str, flags: frozenset[str] = frozenset()) -> SlurmStateMapping:
    """What a job's state is to us."""
    for flag in _TELLING:
        if flag in flags:
            return STATES[flag]
    found = STATES.get(state)
    return found or SlurmStateMapping(
        _UNKNOWN, printable(f"in a state that is not known here: {state or 'none'}", _LONGEST)
    )


# ------------------------------------------------------------------------------------------------------------- reasons

_PASSES: FaultKind | None = None
"""It just waits for its turn."""

REASONS: Mapping[str, FaultKind | None] = {
    **dict.fromkeys(
        ("None", "Priority", "Resources", "BeginTime", "JobArrayTaskLimit", "SchedDefer", "Dependency", "Prolog"),
        _PASSES,
    ),
    **dict.fromkeys(("Cleaning", "FedJobLock", "BurstBufferStageIn", "BurstBufferOperation"), _PASSES),
    # Another of its type would find the same lack; it passes.
    **dict.fromkeys(("ReqNodeNotAvail", "PartitionDown", "PartitionInactive", "NodeDown"), FaultKind.CAPACITY),
    **dict.fromkeys(("FrontEndDown", "Reservation", "Licenses", "BurstBufferResources"), FaultKind.CAPACITY),
    "PartitionNodeLimit": FaultKind.CAPACITY,  # of a job that wants one node: those that it could have are down
    "JobHeldUser": FaultKind.CAPACITY,  # by our own account: who holds it on purpose does not want it cancelled
    # Limits: it starts when another of ours, or of our group's, has ended.
    **dict.fromkeys(("AssociationJobLimit", "AssociationResourceLimit", "AssociationTimeLimit"), FaultKind.QUOTA),
    "AccountingPolicy": FaultKind.QUOTA,
    # Never.
    **dict.fromkeys(("BadConstraints", "PartitionTimeLimit"), FaultKind.CONFIG),
    **dict.fromkeys(("InvalidAccount", "InvalidQOS", "InvalidReservation", "ReservationDeleted"), FaultKind.CONFIG),
    **dict.fromkeys(("AccountNotAllowed", "QOSNotAllowed", "Account", "QOS"), FaultKind.CONFIG),
    **dict.fromkeys(("DependencyNeverSatisfied", "Deadline", "MaxMemPerLimit", "PartitionConfig"), FaultKind.CONFIG),
    **dict.fromkeys(("JobHeldAdmin", "job requeued in held state"), FaultKind.DENIED),
    **dict.fromkeys(("launch failed requeued held", "JobLaunchFailure", "JobHoldMaxRequeue"), FaultKind.NODE),
    **dict.fromkeys(("user env retrieval failed requeued held", "SystemFailure"), FaultKind.NODE),
    "max requeue exceeded": FaultKind.NODE,
}
"""Reasons why a job waits -> what stands in its way and in that of others of its type."""

_FAMILIES = (
    # What one job alone exceeds, no waiting mends.
    (re.compile(r"(qos|assoc)\w*(perjob|pernode)\w*|qosmin\w+|assocmin\w+"), FaultKind.CONFIG),
    (re.compile(r"(qos|assoc)\w+|max\w+per(user|account)\w*"), FaultKind.QUOTA),
)
"""By pattern, in this order, over reasons that the table does not name: there are about a hundred, more with each
release."""


def _word(reason: str) -> str:
    """``(ReqNodeNotAvail, UnavailableNodes:hkn0801)`` -> ``reqnodenotavail``: as squeue, sacct and REST write it."""
    head = re.split(r"[,:(]", reason.strip("() "), maxsplit=1)[0]
    return re.sub(r"[^a-z0-9]", "", head.lower())


_BY_WORD = {_word(name): kind for name, kind in REASONS.items()}


@lru_cache(maxsize=256)  # thousands of jobs wait for the same few reasons
def classify_reason(reason: str) -> FaultKind | None:
    """What keeps a waiting job from starting, if it is more than its turn; None for a reason that we do not know."""
    word = _word(reason[:_LONGEST])
    if word in _BY_WORD:
        return _BY_WORD[word]
    return next((kind for pattern, kind in _FAMILIES if pattern.fullmatch(word)), None)


# ------------------------------------------------------------------------------------------------------------ refusals

_UNSURE = re.compile(
    r"socket timed out|zero bytes were transmitted|communication (receive|send|shutdown) failure"
    r"|message (receive|send) failure|unexpected message received|insane message length|unspecified error"
    r"|connection (reset|refused by peer)|broken pipe",
    re.IGNORECASE,
)
"""It may have been taken: the answer is what failed."""

_REFUSALS = (
    (
        r"unable to contact slurm controller|communication connection failure|in standby mode|unable to connect"
        r"|i/o error writing script|slurm_persist_conn_open|controller is (not|un)\w+|no address",
        FaultKind.DOWN,
    ),
    (r"temporarily (unable to accept|unavailable)|rate limit|too many requests", FaultKind.THROTTLED),
    (
        r"reservation not usable now|partition not available|partition configuration not available now"
        r"|node not available|nodes are busy|resources? (are )?not available now",
        FaultKind.CAPACITY,
    ),
    (
        r"node configuration is not available|invalid (partition|account|qos|feature|generic|job array|trackable|wckey)"
        r"|invalid --|invalid option|unrecognized option|ambiguous option|reservation is invalid|requested reservation"
        r"|not permitted to use this partition|time limit is invalid|node count specification|memory required by task"
        r"|memory specification|cpu count|can ?not be satisfied|gres option|invalid gres|more processors requested"
        r"|too long|array (size|specification)|requested constraint|invalid \w+ specification|license specification"
        r"|invalid node name|invalid cluster|max_?script_?size|job script",
        FaultKind.CONFIG,
    ),
    (r"accounting/qos policy|limit exceeded|job limit", FaultKind.QUOTA),
    (
        r"permission denied|access denied|authentication|unauthori[sz]ed|credential|invalid user id|account expired"
        r"|munge",
        FaultKind.DENIED,
    ),
)
_LIMITS = re.compile(r"\b(?:QOS|Assoc|Max)[A-Za-z]{3,60}\b")
"""What slurmctld says of a limit, before the sentence that says nothing: ``QOSMaxSubmitJobPerUserLimit``."""


def classify_refusal(text: str) -> FaultKind:
    """Of which kind an error is that Slurm told when it was asked for something; UNKNOWN for words not known."""
    for name in _LIMITS.findall(text):
        if kind := classify_reason(name):
            return kind
    for pattern, kind in _REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            return kind
    return FaultKind.UNKNOWN


def refusal_error(text: str) -> AdapterError:
    """The error to raise for what Slurm told when it was asked to start or end something.

    ``OutcomeUnknownError`` where the answer is what failed; ``UnavailableError`` where nobody was reached;
    ``AuthError`` and
    ``RejectedError`` for a no. A job that is refused for its request leaves a record (FAILED, BadConstraints).
    """
    message = printable(" ".join(text.split()), _LONGEST)
    if _UNSURE.search(text):
        return OutcomeUnknownError(message)
    match classify_refusal(text):
        case FaultKind.DOWN:
            return UnavailableError(message)
        case FaultKind.DENIED:
            return AuthError(message)
        case kind:
            return RejectedError(message, kind)
