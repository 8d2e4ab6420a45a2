"""Slurm's states, reasons and error messages in terms of the model.

One table of each. An unknown word means alive, waiting, or rejected for an unknown cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from adapters.shared.printing import printable
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import EndKind, FaultKind, RemoteState

_MESSAGE_LENGTH = 300


class SlurmStateMapping(NamedTuple):
    """The meaning of one of Slurm's job states."""

    state: RemoteState
    description: str = ""
    """Why a live job does not simply wait or run, or how a job ended."""
    kind: EndKind | None = None
    fault: FaultKind | None = None


_PENDING = RemoteState.PENDING
_RUNNING = RemoteState.RUNNING
_UNKNOWN = RemoteState.UNKNOWN
_ENDED = RemoteState.ENDED

SLURM_STATES: Mapping[str, SlurmStateMapping] = {
    # Base states.
    "PENDING": SlurmStateMapping(_PENDING),
    "RUNNING": SlurmStateMapping(_RUNNING),
    "SUSPENDED": SlurmStateMapping(_UNKNOWN, "suspended by its site"),
    "COMPLETED": SlurmStateMapping(_ENDED, "", EndKind.EXITED),
    # by us; see drones.py for the others
    "CANCELLED": SlurmStateMapping(_ENDED, "cancelled", EndKind.STOPPED),
    "FAILED": SlurmStateMapping(_ENDED, "", EndKind.EXITED),
    # Drones leave before their limit; one that did not is at its end, and node and type are fine.
    "TIMEOUT": SlurmStateMapping(_ENDED, "reached its time limit", EndKind.STOPPED),
    "NODE_FAIL": SlurmStateMapping(_ENDED, "its node failed", EndKind.FAULT, FaultKind.NODE),
    "PREEMPTED": SlurmStateMapping(_ENDED, "preempted", EndKind.PREEMPTED),
    "BOOT_FAIL": SlurmStateMapping(_ENDED, "its node did not boot", EndKind.FAULT, FaultKind.NODE),
    "DEADLINE": SlurmStateMapping(
        _ENDED, "its deadline could not be met", EndKind.FAULT, FaultKind.CONFIG
    ),
    # A job in the drone did that: one is bad luck, two more in a row make the type unhealthy.
    "OUT_OF_MEMORY": SlurmStateMapping(
        _ENDED, "exceeded its requested memory", EndKind.FAULT, FaultKind.DRONE
    ),
    # Flags on top of a base state. Where only one word is reported (squeue %T), it is the flag.
    "CONFIGURING": SlurmStateMapping(_PENDING, "its node is being prepared"),
    # its processes may live, its resources are taken
    "COMPLETING": SlurmStateMapping(_RUNNING, "is ending"),
    "STAGE_OUT": SlurmStateMapping(_RUNNING, "its files are staged out"),
    "RESIZING": SlurmStateMapping(_RUNNING, "is being resized"),
    "SIGNALING": SlurmStateMapping(_RUNNING, "is being signalled"),
    "STOPPED": SlurmStateMapping(_UNKNOWN, "stopped by a signal"),
    "POWER_UP_NODE": SlurmStateMapping(_PENDING, "its node is powering up"),
    "EXPEDITING": SlurmStateMapping(_PENDING, "requeued at the head of its queue"),
    "REQUEUED": SlurmStateMapping(_PENDING, "requeued"),
    "REQUEUE_FED": SlurmStateMapping(_PENDING, "requeued in its federation"),
    "REQUEUE_HOLD": SlurmStateMapping(_PENDING, "requeued and held"),
    "SPECIAL_EXIT": SlurmStateMapping(_PENDING, "requeued and held for its exit status"),
    "RESV_DEL_HOLD": SlurmStateMapping(_PENDING, "held: its reservation was deleted"),
    "REVOKED": SlurmStateMapping(
        _ENDED,
        "revoked: another cluster of its federation runs it",
        EndKind.FAULT,
        FaultKind.CONFIG,
    ),
}
"""States and flags of 22.05 to 26.05, without LAUNCH_FAILED, RECONFIG_FAIL and UPDATE_DB, which are unknown."""

UNFINISHED_STATES = frozenset(
    word for word, each in SLURM_STATES.items() if each.state is not _ENDED
)
"""States of jobs without an exit status."""

_DECISIVE_FLAGS = (
    *("COMPLETING", "STAGE_OUT", "CONFIGURING", "POWER_UP_NODE", "STOPPED", "REVOKED"),
    *("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUED", "REQUEUE_FED", "EXPEDITING"),
)
"""Flags that decide instead of the base state, in order of precedence."""


def map_state(state: str, flags: frozenset[str] = frozenset()) -> SlurmStateMapping:
    """Return the meaning of a job's state and flags."""
    for flag in _DECISIVE_FLAGS:
        if flag in flags:
            return SLURM_STATES[flag]
    found = SLURM_STATES.get(state)
    return found or SlurmStateMapping(
        _UNKNOWN, printable(f"unknown state: {state or 'none'}", _MESSAGE_LENGTH)
    )


_REASONS = {
    # Another job of its type would wait for the same; it passes. PartitionNodeLimit, of a job for
    # one node: the nodes that it could run on are down. JobHeldUser, by our own account: whoever
    # holds it does not want it cancelled.
    FaultKind.CAPACITY: (
        "ReqNodeNotAvail PartitionDown PartitionInactive NodeDown FrontEndDown Reservation Licenses"
        " BurstBufferResources PartitionNodeLimit JobHeldUser"
    ),
    # A limit: it starts when another job of our account or group has ended.
    FaultKind.QUOTA: "AccountingPolicy",
    # It would never start.
    FaultKind.CONFIG: (
        "BadConstraints PartitionTimeLimit InvalidAccount InvalidQOS InvalidReservation ReservationDeleted"
        " AccountNotAllowed QOSNotAllowed Account QOS DependencyNeverSatisfied Deadline MaxMemPerLimit PartitionConfig"
    ),
    FaultKind.DENIED: "JobHeldAdmin job_requeued_in_held_state",
    FaultKind.NODE: (
        "launch_failed_requeued_held JobLaunchFailure JobHoldMaxRequeue user_env_retrieval_failed_requeued_held"
        " SystemFailure max_requeue_exceeded"
    ),
}
"""Reasons why a job waits that block others of its type as well. With the others it just waits for its turn."""

_REASON_PATTERNS = (
    # A limit that a single job exceeds: waiting does not help.
    (re.compile(r"(qos|assoc)\w*(perjob|pernode)\w*|qosmin\w+|assocmin\w+"), FaultKind.CONFIG),
    (re.compile(r"(qos|assoc)\w+|max\w+per(user|account)\w*"), FaultKind.QUOTA),
)
"""For reasons that the table does not name, in this order: there are about a hundred, more with each release."""


def _normalize_reason(reason: str) -> str:
    """Return ``reqnodenotavail`` for ``(ReqNodeNotAvail, UnavailableNodes:hkn0801)``, from any transport."""
    head = re.split(r"[,:(]", reason.strip("() "), maxsplit=1)[0]
    return re.sub(r"[^a-z0-9]", "", head.lower())


_FAULT_BY_REASON = {
    _normalize_reason(name): kind for kind, names in _REASONS.items() for name in names.split()
}


@lru_cache(maxsize=256)  # thousands of jobs wait for the same few reasons
def classify_reason(reason: str) -> FaultKind | None:
    """Return the fault that keeps a job from starting; None if it waits for its turn or the reason is unknown."""
    word = _normalize_reason(reason[:_MESSAGE_LENGTH])
    if word in _FAULT_BY_REASON:
        return _FAULT_BY_REASON[word]
    return next((kind for pattern, kind in _REASON_PATTERNS if pattern.fullmatch(word)), None)


_OUTCOME_UNKNOWN = re.compile(
    r"socket timed out|zero bytes were transmitted|communication (receive|send|shutdown) failure"
    r"|message (receive|send) failure|unexpected message received|insane message length|unspecified error"
    r"|connection (reset|refused by peer)|broken pipe",
    re.IGNORECASE,
)
"""The order may have been carried out: only the answer failed."""

_SLURM_REFUSALS = (
    (
        r"unable to contact slurm controller|communication connection failure|in standby mode|unable to connect"
        r"|i/o error writing script|slurm_persist_conn_open|controller is (not|un)\w+|no address",
        FaultKind.DOWN,
    ),
    (
        r"temporarily (unable to accept|unavailable)|rate limit|too many requests",
        FaultKind.THROTTLED,
    ),
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
_LIMIT_NAMES = re.compile(r"\b(?:QOS|Assoc|Max)[A-Za-z]{3,60}\b")
"""The limit that slurmctld names before its generic sentence: ``QOSMaxSubmitJobPerUserLimit``."""


def classify_refusal(text: str) -> FaultKind:
    """Return the kind of an error message of Slurm; UNKNOWN for unknown text."""
    for name in _LIMIT_NAMES.findall(text):
        if kind := classify_reason(name):
            return kind
    for pattern, kind in _SLURM_REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            return kind
    return FaultKind.UNKNOWN


def query_error(text: str) -> AdapterError:
    """Return the error for a question that was not answered: nothing is done by one, so the outcome is known."""
    message = printable(" ".join(text.split()), 400)
    return (
        AuthError(message)
        if classify_refusal(text) is FaultKind.DENIED
        else UnavailableError(message)
    )


def refusal_error(text: str) -> AdapterError:
    """Return the error to raise for Slurm's message about a submission or cancellation."""
    message = printable(" ".join(text.split()), _MESSAGE_LENGTH)
    kind = classify_refusal(text)
    if _OUTCOME_UNKNOWN.search(text):  # only the answer failed
        return OutcomeUnknownError(message)
    if kind is FaultKind.DOWN:  # nobody was reached
        return UnavailableError(message)
    return AuthError(message) if kind is FaultKind.DENIED else RejectedError(message, kind)
