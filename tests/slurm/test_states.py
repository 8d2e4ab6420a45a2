"""Slurm's states, reasons and error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from adapters.slurm.states import classify_reason, classify_refusal, map_state
from provisioner.model import FaultKind, RemoteState


@pytest.mark.parametrize("state", ["QUANTUM", "", "\x1b[2J" + "x" * 5000])
def test_an_unknown_state_is_alive(state: str) -> None:
    found = map_state(state)
    assert (found.state, found.kind) == (RemoteState.UNKNOWN, None)
    assert found.description.isprintable()
    assert len(found.description) <= 300


def test_decisive_flags_override_the_state() -> None:
    assert map_state("RUNNING", frozenset({"CONFIGURING"})).state is RemoteState.PENDING
    assert map_state("PENDING", frozenset({"REQUEUED", "COMPLETING"})).state is RemoteState.RUNNING
    assert map_state("RUNNING", frozenset({"NEW_FLAG"})).state is RemoteState.RUNNING


RESERVED = (
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)
REASONS: Mapping[FaultKind | None, Sequence[str]] = {
    None: [
        *(
            "None",
            "",
            "(Priority)",
            "Resources",
            "BeginTime",
            "JobArrayTaskLimit",
            "Something new in 27.05",
            RESERVED,
        )
    ],
    FaultKind.CAPACITY: [
        *(
            "ReqNodeNotAvail, UnavailableNodes:hkn[0801-0899]",
            "(ReqNodeNotAvail, Reserved for maintenance)",
        ),
        *("PartitionDown", "PartitionNodeLimit", "JobHeldUser"),
    ],
    FaultKind.QUOTA: [
        *(
            "QOSMaxJobsPerUserLimit",
            "QOSMaxGRESPerUser",
            "QOSGrpGRES",
            "AssocGrpCPUMinutesLimit",
            "AssocGrpGRES",
        ),
        *("AssocMaxJobsLimit", "MaxGRESPerAccount", "AssociationJobLimit"),
    ],
    FaultKind.CONFIG: [
        *(
            "QOSMaxWallDurationPerJobLimit",
            "AssocMaxGRESPerJob",
            "QOSMinGRES",
            "BadConstraints",
            "PartitionTimeLimit",
        ),
        *("InvalidAccount", "InvalidQOS", "DependencyNeverSatisfied"),
    ],
    FaultKind.DENIED: ["JobHeldAdmin", "job_requeued_in_held_state"],
    FaultKind.NODE: ["launch failed requeued held", "launch_failed_requeued_held"],
}


@pytest.mark.parametrize(
    ("reason", "kind"), [(reason, kind) for kind, reasons in REASONS.items() for reason in reasons]
)
def test_reasons_are_classified(reason: str, kind: FaultKind | None) -> None:
    assert classify_reason(reason) is kind


LIMIT = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {LIMIT}",
            "quota",
        ),
        (
            f"sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: {LIMIT}",
            "config",
        ),
        ("Batch job submission failed: Requested node configuration is not available", "config"),
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "config",
        ),
        ("sbatch: unrecognized option '--frobnicate'", "config"),
        ("Invalid authentication credential", "denied"),
        ("Required partition not available (inactive or drain)", "capacity"),
        ("Slurm temporarily unable to accept job, sleeping and retrying", "throttled"),
        ("Unable to contact slurm controller (connect failure)", "down"),
        ("", "unknown"),
    ],
)
def test_refusals_are_classified(said: str, kind: str) -> None:
    assert classify_refusal(said) == kind
