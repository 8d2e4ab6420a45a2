"""What OpenStack's own words come to. Nova 34 said them in a lab, or they stand in the sources that faults.py names."""

from __future__ import annotations

import pytest

from adapters.openstack.records import ServerFault
from adapters.openstack.states import classify_fault, fault_in, order_error, read_error
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

_ID = "4641fe9b-adb0-4473-a73e-e69a0bde44b9"

REFUSED = [
    (403, "forbidden", "Quota exceeded for instances: Requested 1, but already used 7 of 6 instances", FaultKind.QUOTA),
    (403, "forbidden", "Quota exceeded, too many servers in group", FaultKind.QUOTA),
    (403, "forbidden", "Maximum number of ports exceeded", FaultKind.QUOTA),
    (409, "NeutronError", "OverQuota: Quota exceeded for resources: ['port'].", FaultKind.QUOTA),
    (
        413,
        "overLimit",
        "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. "
        "Requested 40G, quota is 1000G and 990G has been consumed.",
        FaultKind.QUOTA,
    ),
    (
        413,
        "overLimit",
        "VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded for quota 'volumes'.",
        FaultKind.QUOTA,
    ),
    (403, "forbidden", "Maximum number of metadata items exceeds 128", FaultKind.CONFIG),
    (403, "forbidden", "Only volume-backed servers are allowed for flavors with zero disk.", FaultKind.CONFIG),
    (403, "forbidden", f"It is not allowed to create an interface on external network {_ID}", FaultKind.CONFIG),
    (400, "badRequest", "Flavor nope could not be found.", FaultKind.CONFIG),
    (400, "badRequest", "Can not find requested image", FaultKind.CONFIG),
    (400, "badRequest", "Invalid key_name provided.", FaultKind.CONFIG),
    (400, "badRequest", f"Network {_ID} could not be found.", FaultKind.CONFIG),
    (400, "badRequest", "The requested availability zone is not available", FaultKind.CONFIG),
    (400, "badRequest", "Unable to find security_group with name or id 'nogroup'", FaultKind.CONFIG),
    (
        400,
        "badRequest",
        "Flavor's disk is too small for requested image. Flavor disk is 1 bytes, image is 2 bytes.",
        FaultKind.CONFIG,
    ),
    (400, "badRequest", "Invalid input for field/attribute name. Value: . '' should be non-empty", FaultKind.CONFIG),
    (404, "itemNotFound", "The resource could not be found.", FaultKind.CONFIG),
    (
        409,
        "conflictingRequest",
        "More than one possible network found. Specify network ID(s) to select which one(s) to connect to.",
        FaultKind.CONFIG,
    ),
    (
        409,
        "conflictingRequest",
        "Multiple security groups found matching 'default'. Use an ID to be more specific.",
        FaultKind.CONFIG,
    ),
    (
        409,
        "NeutronError",
        f"IpAddressGenerationFailure: No more IP addresses available on network {_ID}.",
        FaultKind.CAPACITY,
    ),
    (409, "conflictingRequest", f"Port {_ID} is still in use.", FaultKind.CAPACITY),
    (409, "conflictingRequest", f"Instance {_ID} is locked", FaultKind.DENIED),
    (429, "overLimit", "This request was rate-limited.", FaultKind.THROTTLED),
    (413, "overLimit", "This request was rate-limited.", FaultKind.THROTTLED),
    (413, "", "Request Entity Too Large", FaultKind.CONFIG),
    (501, "notImplemented", "Unable to do that", FaultKind.CONFIG),
]


@pytest.mark.parametrize(("status", "key", "message", "kind"), REFUSED)
def test_a_no_that_is_about_the_order(status: int, key: str, message: str, kind: FaultKind) -> None:
    error = order_error(status, key, message)
    assert (type(error), error.kind, str(error)) == (RejectedError, kind, message)


@pytest.mark.parametrize(
    ("status", "message", "error", "kind"),
    [
        (403, "Policy doesn't allow os_compute_api:servers:create to be performed.", AuthError, FaultKind.DENIED),
        (403, "", AuthError, FaultKind.DENIED),
        (401, "", AuthError, FaultKind.DENIED),
        (500, "Unexpected API Error. Please report this at ...", OutcomeUnknownError, FaultKind.UNKNOWN),
        (500, "Unexpected API Error: Quota service", OutcomeUnknownError, FaultKind.UNKNOWN),
        (502, "<html>Bad Gateway</html>", OutcomeUnknownError, FaultKind.UNKNOWN),
        (504, "", OutcomeUnknownError, FaultKind.UNKNOWN),
        (503, "<html>No server is available to handle this request.</html>", UnavailableError, FaultKind.DOWN),
        (408, "", UnavailableError, FaultKind.DOWN),
        (301, "", UnavailableError, FaultKind.CONFIG),
    ],
)
def test_a_no_that_is_not(status: int, message: str, error: type[AdapterError], kind: FaultKind) -> None:
    found = order_error(status, "", message, words="said")
    assert (type(found), found.kind, str(found)) == (error, kind, "said")


@pytest.mark.parametrize(
    ("status", "key", "error", "kind"),
    [
        (403, "forbidden", AuthError, FaultKind.DENIED),
        (429, "", UnavailableError, FaultKind.THROTTLED),
        (413, "overLimit", UnavailableError, FaultKind.THROTTLED),
        (404, "itemNotFound", UnavailableError, FaultKind.DOWN),
        (500, "computeFault", UnavailableError, FaultKind.DOWN),
    ],
)
def test_a_no_to_a_question(status: int, key: str, error: type[AdapterError], kind: FaultKind) -> None:
    found = read_error(status, key, "said")
    assert (type(found), found.kind) == (error, kind)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"badRequest": {"code": 400, "message": "Flavor"}}, ("badRequest", "Flavor")),
        ({"error": {"code": 401, "message": "no", "title": "Unauthorized"}}, ("error", "no")),
        (
            {"NeutronError": {"type": "OverQuota", "message": "exceeded", "detail": ""}},
            ("NeutronError", "OverQuota: exceeded"),
        ),
        ({"NeutronError": "plain"}, ("NeutronError", "plain")),
        ({"errors": [{"status": 406, "title": "Not Acceptable", "detail": "too new"}]}, ("errors", "too new")),
        ({"message": "a proxy's"}, ("message", "a proxy's")),
        ({"badRequest": {"message": 7}}, ("badRequest", "")),
        ({"servers": []}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_the_shapes_of_a_fault(body: dict[str, object], found: tuple[str, str]) -> None:
    assert fault_in(body) == found


def aborted(reason: str) -> str:
    return f"Build of instance {_ID} aborted: {reason}"


IN_ERROR = [
    ("No valid host was found. ", FaultKind.CAPACITY),
    ("No valid host was found. There are not enough hosts available.", FaultKind.CAPACITY),
    (
        "Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for instance x.",
        FaultKind.CAPACITY,
    ),
    ("Insufficient compute resources: vGPU resource is not available.", FaultKind.CAPACITY),
    ("PCI device request [{'alias': 'h100'}] failed", FaultKind.CAPACITY),
    (
        aborted(
            "Failed to allocate the network(s) with error No fixed IP addresses available for network: x, not "
            "rescheduling."
        ),
        FaultKind.CAPACITY,
    ),
    ("Quota exceeded for instances: Requested 1, but already used 6 of 6 instances", FaultKind.QUOTA),
    (
        aborted("VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded for quota 'volumes'."),
        FaultKind.QUOTA,
    ),
    (f"Image {_ID} could not be found.", FaultKind.CONFIG),
    (aborted(f"Image {_ID} is unacceptable: Image disk size greater than requested disk size"), FaultKind.CONFIG),
    (
        aborted("Flavor's disk is too small for requested image. Flavor disk is 1 bytes, image is 2 bytes."),
        FaultKind.CONFIG,
    ),
    (aborted(f"Image {_ID} is not active."), FaultKind.CONFIG),
    (aborted("Block Device Mapping is Invalid: failed to get image x."), FaultKind.CONFIG),
    ("PCI alias h100 is not defined", FaultKind.CONFIG),
    (
        aborted(
            f"Volume {_ID} did not finish being created even after we waited 187 seconds or 61 attempts. And its "
            "status is error."
        ),
        FaultKind.DOWN,
    ),
    ("Connection to glance host http://glance:9292 failed: timed out", FaultKind.DOWN),
    ("Timed out waiting for a reply to message ID 7", FaultKind.DOWN),
    (aborted("Failed to allocate the network(s), not rescheduling."), FaultKind.NODE),
    (f"Binding failed for port {_ID}, please check neutron logs for more information.", FaultKind.NODE),
    (aborted("GPU fell off the bus"), FaultKind.NODE),
    (aborted("Failure prepping block device."), FaultKind.NODE),
    ("internal error: qemu unexpectedly closed the monitor: vfio 0000:41:00.0: group 22 is not viable", FaultKind.NODE),
    ("", FaultKind.NODE),
]


@pytest.mark.parametrize(("message", "kind"), IN_ERROR)
def test_why_a_server_is_in_error(message: str, kind: FaultKind) -> None:
    assert classify_fault(ServerFault(500, message)) is kind


def test_the_conductors_second_count_is_told_by_its_code() -> None:
    assert classify_fault(ServerFault(413, "")) is FaultKind.QUOTA


def test_a_very_long_message_is_no_work() -> None:
    assert classify_fault(ServerFault(500, "image " * 1_000_000)) is FaultKind.NODE
