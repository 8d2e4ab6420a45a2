"""The drill of install.md: the controller's host is lost, and another host goes on with a copy of the record."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.labs.controller import LabController
from tests.labs.htcondor import Condor, gpu_job, until
from tests.labs.htcondor_sites import TopasLab, topas_lab

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("topas"),
    pytest.mark.skipif(os.geteuid() != 0, reason="another host is a namespace, which needs root"),
]

OTHER_HOST = ("unshare", "--uts", "sh", "-c", 'hostname standby.test && exec "$@"', "sh")


def submit_and_run(lab: TopasLab, controller: LabController, n: int, busy: int) -> int:
    """Submit jobs that run until the test ends, and wait until all drones have one."""
    cluster = lab.overlay.submit(gpu_job(n=n, until_there=lab.overlay.file("enough")))
    until(lambda: lab.overlay.statuses(cluster) == [2] * n, 180, what=f"{n} jobs run", every_s=0.5)
    controller.settles({"busy": busy})
    return cluster


def running_drones(lab: TopasLab) -> set[str]:
    """Return the ids of drones that run at the site. It keeps ended ones in its queue for a while."""
    return {str(ad["DroneId"]) for ad in lab.drone_jobs() if ad.get("JobStatus") == 2}


def test_another_host_goes_on_with_a_copy_of_the_record(newest_condor: Condor) -> None:
    with topas_lab(newest_condor) as lab:
        first = lab.controller
        other = replace(first, directory=first.directory.with_name("standby"), around=OTHER_HOST)
        other.write()
        copy = first.directory / "copy.db"
        try:
            first.start()
            kept = submit_and_run(lab, first, 2, busy=2)
            first.prints("backup", str(copy))
            in_copy = {each["id"] for each in first.live()}

            refused = first.call("restore", str(copy), "--fenced")
            assert refused.returncode != 0 and "is held by the controller" in refused.stderr
            refused = other.call("restore", str(copy))
            assert refused.returncode == 3 and "another controller may live" in refused.stderr
            assert not (other.directory / "provisioner.db").exists(), "nothing was put in place"

            since = submit_and_run(lab, first, 1, busy=3)
            [later] = {each["id"] for each in first.live()} - in_copy
            first.kill()

            restored = other.call("restore", str(copy), "--fenced", "--orphans", "stop")
            assert restored.returncode == 0, restored.stderr
            assert f"site topas: 1 orphan (stop): {later}" in restored.stderr
            other.start(write=False)
            until(
                lambda: later not in running_drones(lab),
                120,
                what="the orphan is gone",
                every_s=0.5,
            )
            told = other.json("events")["items"]
            assert [each for each in told if each["name"] == "orphan.stop_ordered"]
            until(
                lambda: lab.overlay.statuses(since) == [2],
                240,
                what="the job of the orphan runs again in another drone",
                every_s=0.5,
            )
            assert lab.overlay.statuses(kept) == [2, 2], "the jobs in drones of the copy go on"
            ids = [each["id"] for each in other.drones()]
            assert in_copy < set(ids) and later not in ids and len(ids) == 3, "no id twice"

            enough = lab.overlay.file("enough")
            enough.touch()
            enough.chmod(0o644)
            until(lambda: not lab.overlay.jobs(kept), 60, what="the jobs are done")
            assert [ad["NumJobStarts"] for ad in lab.overlay.history(kept)] == [1, 1]
        except AssertionError:
            print(other.story())
            raise
        finally:
            other.clean_up()
