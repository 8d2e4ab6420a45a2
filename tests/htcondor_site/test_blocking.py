"""The printed configuration, read as HTCondor reads it and asked about jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import classad2
import pytest
from hypothesis import given, strategies as st

from adapters.htcondor.classads import Ad, as_number, evaluated, expression
from adapters.htcondor.site.blocking import OWNER_RANK, pattern, render
from provisioner.model import Reserve, SitePolicy
from tests.htcondor_site.slot_ads import job, pslot

BEFORE = {
    "START": "TARGET.Banned =!= True",
    "RANK": "",
    "MAXJOBRETIREMENTTIME": "24 * 3600",
    "MACHINEMAXVACATETIME": "10 * 60",
    "WANT_VACATE": "False",
    "STARTD_JOB_ATTRS": "",
    "PREEMPTION_REQUIREMENTS": "",
}
"""What the site had before."""
TOPAS = (
    Reserve(nodes=("topas-v100-*", "*.old.test"), cpus=6, memory_mib=20480),
    Reserve(cpus=8, memory_mib=20480, disk_mib=51200),
)
_MACRO = re.compile(r"\$\((\w+)(?::([^()]*))?\)")


def loaded(text: str, before: dict[str, str] = BEFORE) -> dict[str, str]:
    """Configuration text as HTCondor reads it: continued lines, comments, macros, what a macro was before itself."""
    known = dict(before)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(" = ")
            was = known.get(name, "")
            known[name] = re.sub(
                rf"\$\({name}(?::([^()]*))?\)", lambda m, was=was: was or m[1] or "", value
            )

    def expanded(value: str) -> str:
        again = _MACRO.sub(lambda m: known.get(m[1], "") or m[2] or "", value)
        return value if again == value else expanded(again)

    return {name: expanded(value) for name, value in known.items()}


def site(*reserves: Reserve, grace_s: float = 30) -> SitePolicy:
    return SitePolicy(site="topas", grace_s=grace_s, blocking=reserves)


def start(reserves: tuple[Reserve, ...], slot: Ad, asked: Ad, **before: str) -> bool:
    answer = evaluated(
        expression(loaded(render(site(*reserves)), BEFORE | before)["START"]), slot, asked
    )
    assert isinstance(answer, bool)
    return answer


@pytest.mark.parametrize(
    ("free", "gpus", "cpus", "memory_mib", "taken"),
    [
        ((8, 68, 1048576), 0, 4, 1024, True),
        ((8, 67, 1048576), 0, 4, 1024, False),
        ((8, 64, 1048576), 1, 8, 20480, True),
        ((8, 192, 1048576), 0, 1, 1048576 - 8 * 20480, True),
        ((8, 192, 1048576), 0, 1, 1048576 - 8 * 20480 + 1, False),  # the startd rounds it up
        ((0, 4, 4096), 0, 4, 4096, True),  # no GPU is free: nothing is kept
        ((1, 9, 21504), 0, 1, 1024, True),
        ((1, 9, 21504), 0, 2, 1024, False),
    ],
)
def test_a_job_starts_if_each_gpu_left_finds_its_share(
    free: tuple[int, int, int], gpus: int, cpus: int, memory_mib: int, taken: bool
) -> None:
    assert (
        start(TOPAS, pslot(free=free), job(1, gpus=gpus, cpus=cpus, memory_mib=memory_mib)) is taken
    )


def test_each_class_of_nodes_keeps_its_own_share_and_the_first_that_matches_counts() -> None:
    def most(machine: str, *reserves: Reserve) -> int:
        slot = pslot(machine, cpus=100)
        return max(n for n in range(1, 101) if start(reserves, slot, job(1, gpus=0, cpus=n)))

    assert most("topas-v100-1.etp.test", *TOPAS) == most("x.old.test", *TOPAS) == 100 - 8 * 6
    assert most("topas-v100s-1.etp.test", *TOPAS) == 100 - 8 * 8
    assert most("topas-v100-1.etp.test", TOPAS[1], TOPAS[0]) == 100 - 8 * 8
    assert most("elsewhere", TOPAS[0]) == 100  # in no class: nothing is kept


def test_disk_is_kept_in_its_own_unit_and_what_the_site_demanded_before_stays() -> None:
    slot, asked = pslot(disk_mib=500_000), job(1, gpus=0)
    asked["RequestDisk"] = (500_000 - 8 * 51200) * 1024
    assert start(TOPAS, slot, asked)
    asked["RequestDisk"] = (500_000 - 8 * 51200) * 1024 + 1
    assert not start(TOPAS, slot, asked)
    assert not start(TOPAS, pslot(), job(1, more="Banned = true"))
    assert start(TOPAS, pslot(gpus=0, cpus=8), job(1, gpus=0, cpus=8)), (
        "a node without GPUs keeps nothing"
    )


def values(asked: Ad, **before: str) -> dict[str, float | None]:
    known = loaded(render(site(*TOPAS, grace_s=25)), BEFORE | before)
    names = ("RANK", "MAXJOBRETIREMENTTIME", "MACHINEMAXVACATETIME")
    return {name: as_number(evaluated(expression(known[name]), pslot(), asked)) for name in names}


@pytest.mark.parametrize("mark", ["IsBackfill = true", 'ProvisionerController = "kit"'])
def test_drones_give_way_at_once_and_get_their_grace_and_others_are_treated_as_before(
    mark: str,
) -> None:
    assert values(job(1, more=mark)) == {
        "RANK": 0,
        "MAXJOBRETIREMENTTIME": 0,
        "MACHINEMAXVACATETIME": 25,
    }
    assert values(job(1)) == {
        "RANK": 1_000_000,
        "MAXJOBRETIREMENTTIME": 86400,
        "MACHINEMAXVACATETIME": 600,
    }
    assert values(job(1), RANK="5")["RANK"] == 1_000_005


def test_a_drone_preempts_nobody_and_the_negotiators_own_rule_stays() -> None:
    for before, wanted in (("", False), ("True", True)):
        known = loaded(render(site(*TOPAS)), BEFORE | {"PREEMPTION_REQUIREMENTS": before})
        rule = expression(known["PREEMPTION_REQUIREMENTS"])
        assert evaluated(rule, pslot(), job(1)) is wanted
        assert evaluated(rule, pslot(), job(1, more="IsBackfill = true")) is False


def test_drones_that_are_asked_get_a_head_start_before_the_site_takes_their_place() -> None:
    """Else both make room for one job, and twice as many leave. Only a drone's slot waits, and RANK
    knows no age: a claim keeps the rank that it began with, and owner's jobs would throw out each
    other."""
    asks, leaves_it = (
        loaded(render(site())),
        loaded(render(replace(site(), preempt_proactively=False))),
    )
    young, old = (job(1, more=f"QDate = time() - {age}") for age in (30, 500))
    drone = job(1, more="IsBackfill = true")
    held, free = pslot(more='DroneId = "kit-1"'), pslot()

    def takes(known: Mapping[str, str], slot: Ad, of: Ad) -> object:
        return evaluated(expression(known["START"]), slot, of)

    assert takes(asks, held, young) is False
    assert takes(asks, held, old) is takes(asks, held, drone) is takes(asks, free, young) is True
    assert takes(asks, held, job(1)) is True, "one that does not tell its age"
    assert leaves_it["START"] == BEFORE["START"]
    for known in (asks, leaves_it):
        ranks = [evaluated(expression(known["RANK"]), held, of) for of in (young, old, drone)]
        assert ranks == [OWNER_RANK, OWNER_RANK, 0]


NAMES = st.text("ab1.-_", min_size=1, max_size=8)
PATTERNS = st.lists(
    st.one_of(st.sampled_from(["*", "?", "[ab]", "[a-b1]", "[", "]", ".", "[.]"]), NAMES),
    max_size=5,
)


@given(NAMES, PATTERNS.map("".join).filter(bool))
def test_node_patterns_mean_the_same_to_htcondor_as_to_the_planner(name: str, written: str) -> None:
    parsed = expression(f'regexp("^({pattern(written)})$", MY.Machine)')
    assert evaluated(
        parsed, classad2.ClassAd({"Machine": name}), classad2.ClassAd()
    ) is fnmatchcase(name, written)
