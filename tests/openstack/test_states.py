"""Nova's words for the state of a server: which are alive, which are over, who can still be told to leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.openstack.records import Server, ServerFault
from adapters.openstack.states import STATES, StopMethod, server_phase
from provisioner.model import FaultKind, RemoteState

GUIDE = (
    "ACTIVE",
    "BUILD",
    "DELETED",
    "ERROR",
    "HARD_REBOOT",
    "MIGRATING",
    "PASSWORD",
    "PAUSED",
    "REBOOT",
    "REBUILD",
    "RESCUE",
    "RESIZE",
    "REVERT_RESIZE",
    "SHELVED",
    "SHELVED_OFFLOADED",
    "SHUTOFF",
    "SOFT_DELETED",
    "SUSPENDED",
    "UNKNOWN",
    "VERIFY_RESIZE",
)
RAN = Server("8f1c", "kit-a1b2-7", "ACTIVE", power=1, created_at=100.0, updated_at=200.0, launched_at=150.0)
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")


def test_every_status_of_the_guide_is_in_the_table() -> None:
    assert set(STATES) == set(GUIDE)


@pytest.mark.parametrize("status", ["QUANTUM", "", "active", "x" * 5000, "\x1b[2J"])
def test_an_unknown_status_is_alive(status: str) -> None:
    found = server_phase(replace(RAN, status=status))
    assert (found.state, found.stop) == (RemoteState.UNKNOWN, StopMethod.DELETE)
    assert found.why.isprintable()
    assert len(found.why) <= 300


@pytest.mark.parametrize(
    ("status", "state", "taken"),
    [
        ("PASSWORD", RemoteState.RUNNING, False),
        ("MIGRATING", RemoteState.RUNNING, False),
        ("PAUSED", RemoteState.UNKNOWN, False),
        ("REBOOT", RemoteState.UNKNOWN, False),
        ("HARD_REBOOT", RemoteState.UNKNOWN, False),
        ("REBUILD", RemoteState.UNKNOWN, False),
        ("RESCUE", RemoteState.UNKNOWN, False),
        ("RESIZE", RemoteState.UNKNOWN, False),
        ("VERIFY_RESIZE", RemoteState.UNKNOWN, False),
        ("REVERT_RESIZE", RemoteState.UNKNOWN, False),
        ("UNKNOWN", RemoteState.UNKNOWN, False),
        ("SHUTOFF", RemoteState.STOPPED, False),
        ("SUSPENDED", RemoteState.STOPPED, True),
        ("SHELVED", RemoteState.STOPPED, True),
        ("SHELVED_OFFLOADED", RemoteState.STOPPED, True),
        ("DELETED", RemoteState.ENDED, False),
        ("SOFT_DELETED", RemoteState.ENDED, False),
    ],
)
def test_what_each_status_is(status: str, state: RemoteState, taken: bool) -> None:
    found = server_phase(replace(RAN, status=status))
    assert (found.state, found.taken) == (state, taken)
    assert found.stop is not StopMethod.SHUT_DOWN
    assert found.why


def test_an_active_server_runs_and_can_be_told_to_leave() -> None:
    found = server_phase(RAN)
    assert (found.state, found.why, found.stop, found.leaving) == (RemoteState.RUNNING, "", StopMethod.SHUT_DOWN, False)


def test_one_that_is_being_built_tells_how_far_it_is() -> None:
    found = server_phase(replace(RAN, status="BUILD", task="spawning", launched_at=0.0, power=0))
    assert (found.state, found.why, found.stop) == (RemoteState.PENDING, "is being built: spawning", StopMethod.DELETE)
    assert not found.final


@pytest.mark.parametrize(
    "task", ["deleting", "soft-deleting", "powering-off", "suspending", "shelving", "shelving_image_uploading"]
)
def test_one_that_somebody_ends_still_runs_and_is_not_told_again(task: str) -> None:
    found = server_phase(replace(RAN, task=task))
    assert (found.state, found.leaving, found.stop) == (RemoteState.RUNNING, True, StopMethod.NONE)
    assert found.why


def test_nova_takes_no_stop_while_it_does_something_else() -> None:
    found = server_phase(replace(RAN, task="image_uploading"))
    assert (found.state, found.leaving, found.stop) == (RemoteState.RUNNING, False, StopMethod.DELETE)


@pytest.mark.parametrize(
    ("power", "state", "fault"),
    [
        (0, RemoteState.RUNNING, None),  # not told, or its compute service was restarted
        (3, RemoteState.UNKNOWN, None),
        (4, RemoteState.STOPPED, None),
        (6, RemoteState.STOPPED, FaultKind.NODE),
        (7, RemoteState.UNKNOWN, None),
    ],
)
def test_a_guest_that_its_hypervisor_no_longer_runs(power: int, state: RemoteState, fault: FaultKind | None) -> None:
    found = server_phase(replace(RAN, power=power))
    assert (found.state, found.fault) == (state, fault)


def test_a_guest_that_is_being_switched_on_again_is_not_over() -> None:
    assert server_phase(replace(RAN, power=4, task="reboot_started_hard")).state is RemoteState.RUNNING


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (NO_HOST, FaultKind.CAPACITY),
        (ServerFault(413, "Quota exceeded for instances: Requested 1, but already used 6 of 6"), FaultKind.QUOTA),
        (ServerFault(500, "Build of instance 8f1c aborted: GPU fell off the bus"), FaultKind.NODE),
        (None, FaultKind.UNKNOWN),
    ],
)
def test_an_error_before_the_first_start_waits_in_vain(fault: ServerFault | None, kind: FaultKind) -> None:
    found = server_phase(replace(RAN, status="ERROR", launched_at=0.0, power=0, fault=fault))
    assert (found.state, found.fault, found.final, found.stop) == (RemoteState.PENDING, kind, True, StopMethod.DELETE)
    assert found.why


def test_an_error_after_it_ran_is_the_nodes() -> None:
    found = server_phase(
        replace(RAN, status="ERROR", power=0, fault=ServerFault(500, "libvirt: \x1b[2J gone " + "x" * 900))
    )
    assert (found.state, found.fault, found.final) == (RemoteState.STOPPED, FaultKind.NODE, False)
    assert found.why.startswith("libvirt: ?[2J gone")
    assert len(found.why) <= 300


def test_an_error_while_its_guest_runs_is_alive() -> None:
    """An operator's live migration that failed leaves one so; jobs run on in it."""
    found = server_phase(replace(RAN, status="ERROR", power=1))
    assert (found.state, found.fault) == (RemoteState.UNKNOWN, None)


def test_one_that_is_over_or_waits_in_vain_is_being_deleted() -> None:
    off = server_phase(replace(RAN, status="SHUTOFF", task="deleting"))
    assert (off.state, off.stop, off.leaving) == (RemoteState.STOPPED, StopMethod.NONE, True)
    vain = server_phase(replace(RAN, status="ERROR", launched_at=0.0, fault=NO_HOST, task="deleting"))
    assert (vain.state, vain.fault, vain.final) == (RemoteState.PENDING, FaultKind.CAPACITY, True)
