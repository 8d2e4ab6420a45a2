"""The drone holds a job that takes what belongs to the other jobs in it, before the site ends the whole drone."""

from __future__ import annotations

import re

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


CASES = [
    ({}, False),
    ({"Usage": 4 * GIB}, False),
    ({"Usage": 5 * GIB}, False),
    ({"Usage": 10 * GIB}, False),
    ({"Usage": 10 * GIB + 1}, True),
    ({"Usage": 20 * GIB}, True),
]
IDS = ["unknown", "as asked for", "over its request", "all of its part", "over its part", "all of the drone"]


@pytest.mark.parametrize(("used", "held"), CASES, ids=IDS)
def test_a_job_is_held_for_memory_above_its_request_and_its_part_of_the_drone(used: dict[str, int], held: bool) -> None:
    """A job that filled the memory of its drone had the drone held at the site, and its type banned for all users."""
    drone = {"DRONE_MEMORY_MIB": str(20 * GIB), "units": "2", "unit": "GPUs"}
    slot = {"Memory": 4 * GIB, "GPUs": 1} | {f"Memory{name}": amount for name, amount in used.items()}
    assert exceeds("MEMORY", drone, slot) is held


@pytest.mark.parametrize(("used", "held"), CASES, ids=IDS)
def test_a_job_is_held_for_scratch_above_its_request_and_its_part_of_the_drone(
    used: dict[str, int], held: bool
) -> None:
    """One job filled the scratch directory, and the jobs of others failed for lack of space."""
    drone = {"disk_kib": str(20 * GIB), "units": "2", "unit": "Cpus"}
    slot = {"Disk": 4 * GIB, "Cpus": 1} | {f"Disk{name}": amount for name, amount in used.items()}
    assert exceeds("DISK", drone, slot) is held


def test_a_job_with_all_gpus_may_take_all_memory() -> None:
    drone = {"DRONE_MEMORY_MIB": str(20 * GIB), "units": "2", "unit": "GPUs"}
    assert not exceeds("MEMORY", drone, {"Memory": 4 * GIB, "GPUs": 2, "MemoryUsage": 20 * GIB})


@pytest.mark.parametrize(("resource", "subcode"), [("MEMORY", 102), ("DISK", 104)])
def test_a_job_over_a_limit_is_held_with_a_code_of_its_own(resource: str, subcode: int) -> None:
    held = re.findall(rf"^use POLICY : WANT_HOLD_IF\(DRONE_{resource}_EXCEEDED, (\d+), (.+)\)$", SCRIPT, re.MULTILINE)
    assert [int(code) for code, _ in held] == [subcode]
    assert "part of the drone" in held[0][1]
