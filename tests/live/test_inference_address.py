"""Jobs in drones get the address of the balancer of their inference service."""

from __future__ import annotations

from pathlib import Path

from tests.labs.htcondor import Pool, StartDrone, gpu_job, own, until

SEVERAL = "deepmet:3=10.0.0.1:8001,particlenet:1=10.0.0.1:8001,gnn4itk:1=balancer.example.org:9001"
ONE = "*=10.0.0.1:8001"
OWN = 'environment = "SONIC_LOCAL_BALANCER_HOST=mine SONIC_LOCAL_BALANCER_PORT=1"'
FIRST, SECOND = ("10.0.0.1", "8001"), ("balancer.example.org", "9001")


def addresses(pool: Pool, drone_id: str, *lines: str) -> list[tuple[str, ...]]:
    """Run a job with each of these lines in its description in a drone, and return what the jobs found."""
    here = f'requirements = DroneId == "{drone_id}"'
    clusters = [pool.submit(gpu_job(0.1, more=f"{here}\n{line}")) for line in lines]
    until(lambda: all(pool.history(each) for each in clusters), 90, what="all jobs ended")
    return [_address(pool.dir / "jobs" / f"out.{cluster}.0") for cluster in clusters]


def _address(output: Path) -> tuple[str, ...]:
    found = dict(line.split("=", 1) for line in output.read_text().splitlines() if "=" in line)
    names = ("SONIC_LOCAL_BALANCER_HOST", "SONIC_LOCAL_BALANCER_PORT")
    for name in names:
        assert found.get(f"APPTAINERENV_{name}") in (found.get(name), None), "as in a container"
    return tuple(found[name] for name in names if name in found)


def test_jobs_get_the_address_of_the_service_that_has_their_model(
    pool: Pool, drone_on: StartDrone
) -> None:
    several = own("several")
    drone_on(pool, "several", env={"DRONE_INFERENCE": SEVERAL})

    found = addresses(
        pool,
        several,
        '+WantsInference = "gnn4itk:1"',
        '+WantsInference = "unknown:1, particlenet:1"',
        '+wantsinference = "deepmet"',
        "",
        f'+WantsInference = "deepmet:3"\n{OWN}',
    )

    assert found == [SECOND, FIRST, (), (), ("mine", "1")]


def test_the_only_service_is_for_all_jobs_and_without_one_there_is_no_address(
    pool: Pool, drone_on: StartDrone
) -> None:
    drone_on(pool, "one", env={"DRONE_INFERENCE": ONE})
    drone_on(pool, "none")

    assert addresses(pool, own("one"), "", '+WantsInference = "unknown:1"') == [FIRST, FIRST]
    assert addresses(pool, own("none"), '+WantsInference = "deepmet:3"') == [()]
