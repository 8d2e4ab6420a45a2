"""Whatever an ad says, what the adapter makes of it can be recorded: no NaN, nothing beyond 64 bits, only real text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass

import pytest

from adapters.htcondor.overlay import matching, work
from adapters.htcondor.overlay.job_classes import QueueWait, group, job_class
from adapters.htcondor.overlay.slots import slots_view
from provisioner import serialization
from provisioner.model import DroneType, OverlayView
from tests.htcondor_overlay.jobs import AFFILIATION, BASE, job
from tests.htcondor_overlay.test_slots import REAL, ad
from tests.htcondor_overlay.test_work import run

HISTORY_LIMIT = 2**63 - 1
HUGE = (
    "1e308",
    "-1e308",
    "1e400",
    str(HISTORY_LIMIT),
    str(-HISTORY_LIMIT),
    str(HISTORY_LIMIT + 1),
    "9" * 23,
)
STRANGE = (
    "0.1 + 1e-320",
    "undefined",
    "error",
    "true",
    '"\x1b[2J\u202e\u2028\x7f"',
    '[ a = real("NaN") ]',
)
NO_NUMBERS = (
    'real("NaN")',
    'real("INF")',
    '-real("INF")',
    '{1e308, real("NaN"), "Claimed", undefined}',
)
EXTREMES = (*HUGE, *STRANGE, *NO_NUMBERS)
A100 = DroneType("topas", "a100", 1000, 8, 20480, 51200, 40536, "A100", 80, walltime_s=3600)
OF_A_JOB = sorted(
    {
        *BASE,
        "RequireGPUs",
        "QDate",
        "ServerTime",
        "AllowedJobDuration",
        "MaxWallTimeMins",
        "AcctGroup",
    }
)


def leaves(value: object) -> Iterator[object]:
    """All plain values in a noun."""
    if is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from (leaf for item in value.items() for leaf in leaves(item))
    elif isinstance(value, tuple | list):
        yield from (leaf for item in value for leaf in leaves(item))
    else:
        yield value


def assert_recordable(view: OverlayView) -> None:
    for leaf in leaves(view):
        if isinstance(leaf, str):
            assert leaf.isprintable(), leaf
            leaf.encode()
        elif leaf is not None:
            assert isinstance(leaf, int | float) and math.isfinite(leaf), leaf
            assert isinstance(leaf, float) or abs(leaf) <= HISTORY_LIMIT, leaf
    assert serialization.from_json(OverlayView, serialization.to_json(view)) == view


def view_of_slot(attributes: dict[str, str]) -> OverlayView:
    found = slots_view([ad(**attributes), ad(**attributes)], "kit", lambda theirs: theirs + 7)
    return OverlayView(taken_at=1.0, slots=found.slots, notices=found.notices)


def view_of_class(attributes: dict[str, str]) -> OverlayView:
    made = job(**attributes)
    found = group(made, "s1", AFFILIATION)
    if found is None:
        return OverlayView(taken_at=1.0)
    waits = QueueWait.of(made, 1000.0)
    refused = matching.unmet_requirement(made, matching.template(A100))
    each = job_class(found.key, [found, found], 3, waits)
    return OverlayView(
        taken_at=1.0,
        classes=(each,),
        notices=(refused.requested, refused.available) if refused else (),
    )


def view_of_work(attributes: dict[str, str]) -> OverlayView:
    slots = slots_view([ad()], "kit", lambda theirs: theirs).slots
    found = work.work([run(**attributes)] * 3, "kit", 2000.0, lambda theirs: theirs - 7, {})
    return OverlayView(taken_at=1.0, slots=found.on(slots), evictions=found.evictions)


VIEWS = [
    (view_of_slot, sorted(REAL)),
    (view_of_class, OF_A_JOB),
    (view_of_work, work.WORK_PROJECTION),
]


@pytest.mark.parametrize(("view", "names"), VIEWS)
def test_each_attribute_alone(
    view: Callable[[dict[str, str]], OverlayView], names: Sequence[str]
) -> None:
    for name in names:
        for text in EXTREMES:
            assert_recordable(view({name: text}))
