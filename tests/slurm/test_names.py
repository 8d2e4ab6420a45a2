"""Job names and the drones that they identify."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.slurm.drones import drone_of, is_drone, job_name, split_drone_id
from adapters.slurm.records import SlurmJob
from provisioner.model import DroneId


def job(name: str, remote_id: str = "123") -> SlurmJob:
    return SlurmJob(remote_id, name, "RUNNING")


def test_a_job_of_its_own_is_the_drone_that_it_is_called() -> None:
    found = drone_of(job("kit-a1b2-17.a100.horeka"), "kit", "horeka")
    assert found is not None
    assert (found.drone_id, found.type) == ("kit-a1b2-17", "a100")


def test_a_task_of_an_array_is_counted_from_the_first() -> None:
    ids = [
        found and found.drone_id
        for n in (0, 4)
        if (found := drone_of(job("kit-a1b2-17+.a100.horeka", f"9_{n}"), "kit", "horeka"))
    ]
    assert ids == ["kit-a1b2-17", "kit-a1b2-21"]


@pytest.mark.parametrize(
    ("name", "remote_id"),
    [
        ("kit-two-a1b2-17.a100.horeka", "1"),  # of a controller whose name begins like ours
        ("kit-a1b2-17.a100.topas", "1"),
        ("kit-a1b2-17.a100", "1"),
        ("kit-a1b2-17.a100.horeka.x", "1"),
        ("kit-a1b2-017.a100.horeka", "1"),  # would be another drone's id
        ("kit-a1b2-17.a100.horeka\n", "1"),
        ("kit-a1b2-.a100.horeka", "1"),
        ("kit-17.a100.horeka", "1"),
        ("KIT-a1b2-17.a100.horeka", "1"),
        ("kit-a1b2-17+.a100.horeka", "1"),  # an array that nobody has split into its tasks
        ("kit-a1b2-17+.a100.horeka", "1_[0-9]"),
        ("kit-a1b2-17.a100.horeka", "1_4"),
        ("kit-a1b2-17.a100.horeka", "1.batch"),
        ("kit-a1b2-17.a100.horeka", ""),
        ("kit-a1b2-" + "9" * 60 + ".a100.horeka", "1"),
        ("wrap", "1"),
        ("", "1"),
    ],
)
def test_a_job_with_another_name_is_no_drone(name: str, remote_id: str) -> None:
    assert drone_of(job(name, remote_id), "kit", "horeka") is None


def test_drones_of_other_controllers_are_known_as_drones() -> None:
    assert is_drone(job("other-zz9-3+.h100.somewhere", "7_1"))
    assert not is_drone(job("train.sh"))


def test_an_id_has_a_prefix_and_a_serial() -> None:
    assert split_drone_id(DroneId("kit-two-a1b2-17"), "kit-two") == ("kit-two-a1b2", 17)
    assert split_drone_id(DroneId("kit-two-a1b2-17"), "kit") is None


LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)


@given(LABEL, st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), st.integers(0, 10**9), LABEL, LABEL, st.integers(1, 5))
def test_every_drone_of_a_job_is_found_again(
    controller: str, birth: str, first: int, kind: str, site: str, count: int
) -> None:
    ids = [DroneId(f"{controller}-{birth}-{first + n}") for n in range(count)]
    name = job_name(ids, kind, site)
    remote = [f"8_{n}" for n in range(count)] if count > 1 else ["8"]
    found = [drone_of(job(name, each), controller, site) for each in remote]
    assert [each and each.drone_id for each in found] == ids
    assert {each.type for each in found if each} == {kind}


@given(st.text(max_size=300), st.text(max_size=30))
def test_no_name_whatever_breaks_a_listing(name: str, remote_id: str) -> None:
    found = drone_of(job(name, remote_id), "kit", "horeka")
    assert found is None or found.drone_id.startswith("kit-")
