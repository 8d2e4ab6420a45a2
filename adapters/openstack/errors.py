"""Classification of OpenStack's errors: rejected calls, and servers in ERROR.

There is a table for each; an error that no table knows is classified by its status alone. The words are those of Nova
34 (``nova/exception.py``; ``nova/compute/manager.py``: ``_build_and_run_instance`` and ``_build_resources``;
statuses: ``create`` in ``nova/api/openstack/compute/servers.py``), of neutron-lib (``exceptions``: OverQuota,
IpAddressGenerationFailure) and of Cinder (``exception.py``: QuotaError and its children). They have hardly changed
since Pike. The shape of an error is in the compute API guide under "Faults".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from adapters.openstack.records import ServerFault
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind

Table = Sequence[tuple[re.Pattern[str], FaultKind]]


def _table(*rows: tuple[str, FaultKind]) -> Table:
    return [(re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in rows]


_NO_QUOTA = (r"maximum number of metadata items|personality file", FaultKind.CONFIG)
"""Limits of one request, which no waiting mends; Nova counts them among quotas, so they are looked for first."""

_QUOTA = (
    r"\bquotas?\b|\bOverQuota\b|\w+LimitExceeded"
    r"|maximum number of (instances|cores|ports|fixed ips|floating ips|volumes|gigabytes|security groups)",
    FaultKind.QUOTA,
)

_NO_ROOM = (
    r"no valid host|not enough hosts|exhausted all hosts|maximum number of retries|insufficient compute resources"
    r"|no fixed ip addresses available|no more ip addresses|instance group policy was violated"
    r"|pci device request .* failed|attempt to consume pci device|pci device .* instead of"
    r"|virtual functions of pf .* are not? free|not all virtual functions|failed to create allocations"
    r"|conflict was encountered attempting to (invoke the placement api|update resource provider)",
    FaultKind.CAPACITY,
)
"""Of a race for the last GPU too: the PCI claims on the host find it taken (``nova/exception.py``, Pci*)."""

_THE_ORDER = (
    r"(image|flavor|network|volume type|key ?pair|security group|snapshot|instance group|availability zone)\b.*"
    r"(could not be found|not found|is not available)"
    r"|can not find requested image|invalid key_name|image .* is (not active|unacceptable)|not authorized for image"
    r"|(disk|memory) is too small|disk would be too small|volume is smaller|only volume-backed servers"
    r"|number of disk devices|block device mapping is invalid|disk format|pci alias"
    r"|signature certificate|signature verif"
    r"|external network|requires a subnet|port_security_enabled|more than one possible network|no unique match"
    r"|multiple \w+ (groups )?(found|match)|unable to automatically allocate a network|scheduling failed:"
    r"|invalid input|user data|video memory|volume encryption is not supported|disk info",
    FaultKind.CONFIG,
)

# ------------------------------------------------------------------------------------------------------ answers: a no

_REFUSALS = _table(
    _NO_QUOTA,
    _QUOTA,
    _NO_ROOM,
    _THE_ORDER,
    # Somebody has locked it, on purpose: only a human knows why.
    (r"\bis locked\b", FaultKind.DENIED),
)


def of_answer(status: int, key: str, message: str, *, text: str = "") -> AdapterError:
    """Return the error to raise for a rejected order.

    ``key`` is the name of the fault in the body (``badRequest``, ``NeutronError``), ``message`` its words, ``text``
    the words to report (default: ``message``). 500, 502 and 504 leave the outcome open: Nova may have recorded the
    server before something else failed, and a proxy may have passed the order on. 503 comes from a service that did
    not accept it.
    """
    text = text or message
    if status == 401:
        return AuthError(text)
    if status in (429, 413) and not _QUOTA_WORDS.search(message):
        # Without the key it is a proxy's word for a request that is too large.
        throttled = status == 429 or key == "overLimit"
        return RejectedError(text, FaultKind.THROTTLED if throttled else FaultKind.CONFIG)
    if status in (408, 503):
        return UnavailableError(text)
    if status == 501:
        return RejectedError(text, FaultKind.CONFIG)
    if status >= 500:
        return OutcomeUnknownError(text)
    if 300 <= status < 400:
        return UnavailableError(text, FaultKind.CONFIG)
    kind = _first(_REFUSALS, f"{key} {message}")
    if kind is None and status == 403:
        return AuthError(text)
    if kind is None:
        # What else conflicts passes: two that change one thing at a time.
        kind = FaultKind.CAPACITY if status == 409 else FaultKind.CONFIG
    return RejectedError(text, kind)


_QUOTA_WORDS = re.compile(_QUOTA[0], re.IGNORECASE)


def of_question(status: int, key: str, text: str) -> AdapterError:
    """Return the error to raise for a rejected read."""
    if status in (401, 403):
        return AuthError(text)
    throttled = status == 429 or (status == 413 and key == "overLimit")
    return UnavailableError(text, FaultKind.THROTTLED if throttled else None)


def complaint(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key of a fault and its words; empty for an unknown shape.

    Shapes: ``{"badRequest": {"message": ...}}`` (Nova, Cinder), ``{"error": ...}`` (Keystone), ``{"NeutronError":
    {"type": ..., "message": ...}}``, ``{"errors": [{"detail": ...}]}`` (a wrong microversion).
    """
    for key, told in body.items():
        if isinstance(told, list) and told and isinstance(told[0], dict):
            told = told[0]
        if isinstance(told, str) and key in ("error", "NeutronError", "message"):
            return key, told
        if isinstance(told, dict):
            words = next((told[each] for each in ("message", "detail", "title") if isinstance(told.get(each), str)), "")
            kind = told.get("type")
            return key, f"{kind}: {words}" if isinstance(kind, str) and kind else words
    return "", ""


# ------------------------------------------------------------------------------------------------ servers in ERROR

_SERVERS = _table(
    _NO_QUOTA,
    _QUOTA,
    _NO_ROOM,
    # A service that all hosts depend on: another host would meet the same, and later it may be well.
    (
        r"did not finish being created|connection to (cinder|glance|keystone|manila) .*failed|connection to neutron"
        r"|timed out waiting for a reply|unable to communicate with the placement api|could not fetch image",
        FaultKind.DOWN,
    ),
    # Before the order's own faults: its words say `network`, and it is nothing of the order's. The agent on that host
    # did not plug or bind the port within vif_plugging_timeout; on another host it may.
    (
        r"failed to allocate the network|binding failed for port|virtual interface creation failed|port update failed",
        FaultKind.NODE,
    ),
    _THE_ORDER,
)


def of_server(fault: ServerFault) -> FaultKind:
    """Return the kind of the fault of a server in ERROR.

    Words that no table knows come from a hypervisor (libvirt, a traceback's last line, "Failure prepping block
    device"): the fault is its host's. "Exhausted all hosts available for retrying" hides what each host reported; all
    that remains is that no host was left.
    """
    if fault.code == 413:  # the conductor counts again after the API has: two creates at a time meet there
        return FaultKind.QUOTA
    return _first(_SERVERS, fault.message) or FaultKind.NODE


def _first(table: Table, text: str) -> FaultKind | None:
    text = " ".join(text[:1000].split())
    return next((kind for pattern, kind in table if pattern.search(text)), None)
