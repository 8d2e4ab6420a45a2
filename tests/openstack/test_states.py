"""Words of Nova: states of servers and how they are stopped, faults of servers, rejected calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from adapters.openstack import servers
from adapters.openstack.servers import Server, ServerFault
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import FaultKind, RemoteState

RAN = Server(
    "8f1c", "kit-a1b2-7", "ACTIVE", power=1, created_at=100.0, updated_at=200.0, launched_at=150.0
)
NO_HOST = ServerFault(500, "No valid host was found. There are not enough hosts available.")


@pytest.mark.parametrize("status", ["QUANTUM", "", "active", "x" * 5000, "\x1b[2J"])
def test_an_unknown_status_is_alive(status: str) -> None:
    found = servers.server_phase(replace(RAN, status=status))
    assert (found.state, found.stop) == (RemoteState.UNKNOWN, servers.StopMethod.DELETE)
    assert found.why.isprintable()
    assert len(found.why) <= 300


RUNNING, PENDING, UNKNOWN = RemoteState.RUNNING, RemoteState.PENDING, RemoteState.UNKNOWN
OFF = RemoteState.STOPPED
BUILDS = replace(RAN, status="BUILD", task="spawning", launched_at=0.0, power=0)
VAIN = replace(BUILDS, status="ERROR", task="")
LIBVIRT = ServerFault(500, "libvirt: \x1b[2J gone " + "x" * 900)


@pytest.mark.parametrize(
    ("server", "state", "more"),
    [
        (RAN, RUNNING, {"why": "", "stop": servers.StopMethod.SHUT_DOWN, "leaving": False}),
        (
            BUILDS,
            PENDING,
            {"why": "is being built: spawning", "stop": servers.StopMethod.DELETE, "final": False},
        ),
        *(
            (replace(RAN, task=task), RUNNING, {"leaving": True, "stop": servers.StopMethod.NONE})
            for task in (
                "deleting",
                "soft-deleting",
                "powering-off",
                "suspending",
                "shelving",
                "shelving_offloading",
            )
        ),
        # Nova takes no stop while it does something else
        (
            replace(RAN, task="image_uploading"),
            RUNNING,
            {"leaving": False, "stop": servers.StopMethod.DELETE},
        ),
        # a guest that its hypervisor no longer runs; 0: not told, or its compute service was
        # restarted
        (replace(RAN, power=3), UNKNOWN, {"fault": None}),
        (replace(RAN, power=4), OFF, {"fault": None}),
        (replace(RAN, power=6), OFF, {"fault": FaultKind.NODE}),
        (replace(RAN, power=4, task="reboot_started_hard"), RUNNING, {}),
        # an error before the first start waits in vain
        (
            replace(VAIN, fault=NO_HOST),
            PENDING,
            {"fault": FaultKind.CAPACITY, "final": True, "stop": servers.StopMethod.DELETE},
        ),
        # an error after it ran is the node's; while its guest runs (a live migration that failed)
        # it is alive
        (
            replace(RAN, status="ERROR", power=0, fault=LIBVIRT),
            OFF,
            {"fault": FaultKind.NODE, "final": False},
        ),
        (replace(RAN, status="ERROR", power=1), UNKNOWN, {"fault": None}),
        (
            replace(RAN, status="SHUTOFF", task="deleting"),
            OFF,
            {"stop": servers.StopMethod.NONE, "leaving": True},
        ),
    ],
)
def test_the_phase_of_a_server(
    server: Server, state: RemoteState, more: Mapping[str, object]
) -> None:
    """Check the cases in which a status alone does not decide; test_reference.py has one row for each status."""
    found = servers.server_phase(server)
    assert {name: getattr(found, name) for name in ("state", *more)} == {"state": state, **more}
    assert (found.why.isprintable(), len(found.why) <= 300) == (True, True)
    assert bool(found.why) is (found.state is not RUNNING or bool(server.task))


_ID = "4641fe9b-adb0-4473-a73e-e69a0bde44b9"

REJECTED = {
    FaultKind.QUOTA: """
        403 forbidden Quota exceeded for instances: Requested 1, but already used 7 of 6 instances
        409 NeutronError OverQuota: Quota exceeded for resources: ['port'].
        413 overLimit VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded for quota 'volumes'.""",
    FaultKind.CONFIG: """
        403 forbidden Maximum number of metadata items exceeds 128
        400 badRequest Flavor nope could not be found.
        404 itemNotFound The resource could not be found.
        409 conflictingRequest More than one possible network found. Specify network ID(s) to select which one(s).
        413 - Request Entity Too Large""",
    FaultKind.CAPACITY: """
        409 NeutronError IpAddressGenerationFailure: No more IP addresses available on network ID.
        409 conflictingRequest Port ID is still in use.""",
    FaultKind.DENIED: """
        409 conflictingRequest Instance ID is locked""",
    FaultKind.THROTTLED: """
        429 overLimit This request was rate-limited.
        413 overLimit This request was rate-limited.""",
}


def rows(table: Mapping[FaultKind, str]) -> list[tuple[str, FaultKind]]:
    return [
        (line.strip().replace(" ID", f" {_ID}"), kind)
        for kind, text in table.items()
        for line in text.split("\n")[1:]
    ]


@pytest.mark.parametrize(("row", "kind"), rows(REJECTED))
def test_a_no_that_is_about_the_order(row: str, kind: FaultKind) -> None:
    status, key, message = row.split(maxsplit=2)
    error = servers.order_error(int(status), key.strip("-"), message, words=message)
    assert (type(error), error.kind, str(error)) == (RejectedError, kind, message)


@pytest.mark.parametrize(
    ("status", "message", "error", "kind"),
    [
        (
            403,
            "Policy doesn't allow os_compute_api:servers:create to be performed.",
            AuthError,
            FaultKind.DENIED,
        ),
        (401, "", AuthError, FaultKind.DENIED),
        (
            500,
            "Unexpected API Error. Please report this at ...",
            OutcomeUnknownError,
            FaultKind.UNKNOWN,
        ),
        (504, "", OutcomeUnknownError, FaultKind.UNKNOWN),
        (
            503,
            "<html>No server is available to handle this request.</html>",
            UnavailableError,
            FaultKind.DOWN,
        ),
        (301, "", UnavailableError, FaultKind.CONFIG),
    ],
)
def test_a_no_that_is_not(
    status: int, message: str, error: type[AdapterError], kind: FaultKind
) -> None:
    found = servers.order_error(status, "", message, words="said")
    assert (type(found), found.kind, str(found)) == (error, kind, "said")


def test_the_shapes_of_a_fault() -> None:
    of_neutron = {"NeutronError": {"type": "OverQuota", "message": "exceeded", "detail": ""}}
    of_a_version = {"errors": [{"status": 406, "title": "Not Acceptable", "detail": "too new"}]}
    assert servers.fault_in({"badRequest": {"code": 400, "message": "Flavor"}}) == (
        "badRequest",
        "Flavor",
    )
    assert servers.fault_in(of_neutron) == ("NeutronError", "OverQuota: exceeded")
    assert servers.fault_in(of_a_version) == ("errors", "too new")


IN_ERROR = {
    FaultKind.CAPACITY: """
        No valid host was found.
        Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for instance x.
        Build of instance ID aborted: Failed to allocate the network(s) with error No fixed IP addresses available""",
    FaultKind.QUOTA: """
        Quota exceeded for instances: Requested 1, but already used 6 of 6 instances""",
    FaultKind.CONFIG: """
        Image ID could not be found.
        Build of instance ID aborted: Block Device Mapping is Invalid: failed to get image x.
        PCI alias h100 is not defined""",
    FaultKind.DOWN: """
        Build of instance ID aborted: Volume ID did not finish being created even after we waited 187 seconds
        Connection to glance host http://glance:9292 failed: timed out""",
    FaultKind.NODE: """
        Build of instance ID aborted: Failed to allocate the network(s), not rescheduling.
        Build of instance ID aborted: GPU fell off the bus
        internal error: qemu unexpectedly closed the monitor: vfio 0000:41:00.0: group 22 is not viable
        """,
}


@pytest.mark.parametrize(("message", "kind"), rows(IN_ERROR))
def test_why_a_server_is_in_error(message: str, kind: FaultKind) -> None:
    assert servers.classify_fault(ServerFault(500, message)) is kind


def test_a_very_long_message_is_no_work() -> None:
    assert servers.classify_fault(ServerFault(500, "image " * 1_000_000)) is FaultKind.NODE
