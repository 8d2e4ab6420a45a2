"""The drone holds a job that takes what belongs to the other jobs in it, before the site ends the whole drone."""

from __future__ import annotations

import re
import time

import classad2
import pytest

from provisioner.drone import script

SCRIPT = script("condor_drone.sh").decode()
GIB = 1024


def exceeds(resource: str, values: dict[str, str], slot: dict[str, int]) -> bool:
    """Return whether a slot with these attributes has a job over its limit, by the drone's own expression."""
    (text,) = re.findall(rf"^DRONE_{resource}_EXCEEDED = (.*)$", SCRIPT, re.MULTILINE)
    for name, value in values.items():
        text = text.replace(f"${name}", value)
    assert "$" not in text, "all variables of the script are known here"
    ad = classad2.ClassAd(dict(slot))
    ad["Exceeded"] = classad2.ExprTree(text)
    return bool(ad.eval("Exceeded"))


@pytest.mark.parametrize(
    ("resource", "size", "unit"),
    [("MEMORY", "DRONE_MEMORY_MIB", "GPUs"), ("DISK", "disk_kib", "Cpus")],
)
@pytest.mark.parametrize(
    ("units", "used", "held"),
    [
        (1, None, False),
        (1, 5 * GIB, False),
        (1, 10 * GIB, False),
        (1, 10 * GIB + 1, True),
        (2, 20 * GIB, False),
    ],
    ids=["unknown", "over its request", "all of its part", "over its part", "all of the drone"],
)
def test_a_job_is_held_above_its_request_and_its_part_of_the_drone(
    resource: str, size: str, unit: str, units: int, used: int | None, held: bool
) -> None:
    """A job that filled the memory of its drone had the drone held at the site, and its type banned
    for all users; one that filled the scratch directory made the jobs of others fail."""
    name = resource.capitalize()
    slot = {name: 4 * GIB, unit: units} | ({} if used is None else {f"{name}Usage": used})
    assert exceeds(resource, {size: str(20 * GIB), "units": "2", "unit": unit}, slot) is held


@pytest.mark.parametrize(("resource", "subcode"), [("MEMORY", 102), ("DISK", 104)])
def test_a_job_over_a_limit_is_held_with_a_code_of_its_own(resource: str, subcode: int) -> None:
    held = re.findall(
        rf"^use POLICY : WANT_HOLD_IF\(DRONE_{resource}_EXCEEDED, (\d+), (.+)\)$",
        SCRIPT,
        re.MULTILINE,
    )
    assert [int(code) for code, _ in held] == [subcode]
    assert "part of the drone" in held[0][1]


@pytest.mark.parametrize(
    ("slot", "held"),
    [
        ({}, False),
        ({"JobVramUsage": 11148}, False),
        ({"JobVramUsage": 11148, "JobVramSince": 105, "JobStart": 100}, True),
        ({"JobVramUsage": 10134, "JobVramSince": 105, "JobStart": 100}, False),
        ({"JobVramUsage": 11148, "JobVramSince": 95, "JobStart": 100}, False),
        ({"JobVramUsage": 11148, "JobVramSince": 105, "JobStart": 100, "GPUMem": 12000}, False),
        ({"JobVramUsage": 12001, "JobVramSince": 105, "JobStart": 100, "GPUMem": 12000}, True),
    ],
    ids=[
        "no monitor",
        "no job",
        "over",
        "at its share",
        "of the job before",
        "in its pool",
        "over its pool",
    ],
)
def test_a_job_is_held_for_the_vram_that_it_held_itself(slot: dict[str, int], held: bool) -> None:
    """The report of the job before it in the same slot does not count."""
    ad = classad2.ClassAd({"GPUs": 1, **slot})
    for name in ("JobVramShare", "DRONE_VRAM_EXCEEDED"):
        (text,) = re.findall(rf"^{name} = (.*)$", SCRIPT, re.MULTILINE)
        ad[name] = classad2.ExprTree(text.replace("$share_mib", "10134").replace("MY.", ""))
    assert ad.eval("DRONE_VRAM_EXCEEDED") is held


@pytest.mark.parametrize(
    ("gpus", "left_s", "takes"), [(1, 90, False), (2, 90, True), (None, 90, False), (1, -1, True)]
)
def test_at_first_a_drone_takes_only_jobs_of_as_many_gpus(
    gpus: int | None, left_s: int, takes: bool
) -> None:
    (free,) = re.findall(r'^ +free="(.*)"$', SCRIPT, re.MULTILINE)
    free = free.replace("$(($(date +%s) + rule_first_s))", f"{int(time.time()) + left_s}")
    (text,) = re.findall(r'first="\$first && (.*TARGET\.RequestGPUs.*)"$', SCRIPT, re.MULTILINE)
    start = classad2.ExprTree(text.replace("$free", free).replace("$rule_first_gpus", "2"))
    job = classad2.ClassAd({} if gpus is None else {"RequestGPUs": gpus})
    assert str(start.simplify(classad2.ClassAd(), job)).lower() == str(takes).lower()
