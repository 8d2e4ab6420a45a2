"""Drones as backfill of an owner's HTCondor cluster: as many as there are free GPUs, each told where it is."""

from __future__ import annotations

import pytest

from tests.labs.htcondor import Condor, gpu_job, until
from tests.labs.htcondor_sites import Happened, carriers, drone_of, events, topas_lab

pytestmark = [pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]


def test_eight_free_gpus_get_eight_drones_and_nothing_queues(newest_condor: Condor) -> None:
    with topas_lab(newest_condor) as lab:
        lab.controller.idle_s = 60
        lab.controller.start()
        enough = lab.overlay.file("enough")
        jobs = lab.overlay.submit(gpu_job(n=12, until_there=enough))
        until(lambda: sorted(lab.overlay.statuses(jobs)) == [1] * 4 + [2] * 8, 150, what="eight jobs run, four wait")
        until(lambda: lab.controller.states() == {"busy": 8}, 60, what="and the controller knows", every_s=0.5)
        lab.controller.ticks(5)
        assert lab.controller.states() == {"busy": 8}, "the four that wait bring no further drone"

        at_site = {str(ad["DroneId"]): str(ad["RemoteHost"]) for ad in lab.drone_jobs()}
        in_pool = {
            str(ad["DroneId"]): str(ad["Name"])
            for ad in lab.overlay.slots('SlotType == "Partitionable" && DroneId isnt undefined')
        }
        shown = lab.controller.live()
        assert {d["id"]: d["node"] for d in shown} == dict.fromkeys(at_site, lab.site.nodes[0].machine)
        assert {d["id"]: d["site_slot"] for d in shown} == at_site
        assert {d["id"]: d["slot"] for d in shown} == in_pool
        assert carriers(lab.overlay, jobs) == set(at_site)
        for drone in shown:
            told = lab.controller.call("drones", "show", drone["id"]).stdout
            assert at_site[drone["id"]] in told and in_pool[drone["id"]] in told, told

        enough.touch()
        enough.chmod(0o644)
        until(lambda: not lab.overlay.jobs(jobs), 90, what="all twelve are done", every_s=0.5)
        done = lab.overlay.history(jobs)
        assert [(ad["JobStatus"], ad["NumJobStarts"]) for ad in done] == [(4, 1)] * 12
        assert {drone_of({"RemoteHost": ad["LastRemoteHost"]}) for ad in done} <= set(at_site)
        asked = [event for event in events(lab.site) if event.what is Happened.SUBMITTED]
        assert len(asked) == 8, "at no time more than there were GPUs"
