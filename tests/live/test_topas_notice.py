"""The site takes a drone's place: its job hears of it in time, keeps what it can save, and the loss is told truly."""

from __future__ import annotations

import re
import time
from datetime import datetime

import pytest

from tests.labs.htcondor import Condor, Diary, gpu_job, until
from tests.labs.htcondor_sites import (
    GRACE_S,
    OWNER,
    NodeShape,
    SitePool,
    TopasLab,
    carriers,
    owner_job,
    topas_lab,
)

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]

TWO_GPUS = NodeShape("node1", gpus=2, cpus=32, memory_mib=128 * 1024)
RUNS_FOR_S = 40
"""So that the whole seconds of HTCondor's clock are less than a twentieth of it."""

COMPUTES = "trap 'say TERM' TERM\nwhile :; do say works; sleep 0.1; done\n"
"""Saves nothing, and works on until it is killed."""

COUNTS = """\
n=$(cat state 2>/dev/null || echo 0)
say "from $n"
trap 'echo $n >state; say TERM; say "at $n"; exit 1' TERM
while [ ! -e {enough} ]; do n=$((n + 1)); sleep 0.1; done
echo $n >state
say "done $n"
"""
"""Saves how far it has come when it is told to leave; its files go home."""
SAVING = "when_to_transfer_output = ON_EXIT_OR_EVICT\ntransfer_output_files = state"


def notices(site: SitePool) -> list[float]:
    """When the node's starters told their jobs to leave."""
    found = []
    for log in (site.dir / site.nodes[0].name / "log").glob("StarterLog.slot1_*"):
        for line in log.read_text(errors="replace").splitlines():
            if "ShutdownGraceful all jobs" in line:
                at = re.match(r"\S+ \S+", line)
                assert at is not None
                found.append(datetime.strptime(at[0], "%m/%d/%y %H:%M:%S.%f").timestamp())
    return sorted(found)


def ends(lab: TopasLab) -> dict[str, dict[str, object]]:
    return {d["id"]: d for d in lab.controller.drones(ended=True)}


def test_notice_grace_checkpoint_and_what_it_has_cost(newest_condor: Condor) -> None:
    with topas_lab(newest_condor, (TWO_GPUS,)) as lab:
        enough = lab.overlay.file("enough")
        computes, counts = Diary(lab.overlay, "computes"), Diary(lab.overlay, "counts")
        lab.controller.idle_s = 60
        lab.controller.start()
        first = lab.overlay.submit(gpu_job(program=computes.program(COMPUTES)))
        second = lab.overlay.submit(
            gpu_job(program=counts.program(COUNTS.format(enough=enough)), more=SAVING)
        )
        until(lambda: computes.said("works") and counts.said("from"), 120, what="both jobs run")
        lost, saved = carriers(lab.overlay, first).pop(), carriers(lab.overlay, second).pop()
        until(
            lambda: time.time() - computes.at("works") > RUNS_FOR_S,
            RUNS_FOR_S + 30,
            what="work to lose",
        )

        owners = lab.site.submit(owner_job(5, n=2), OWNER)
        until(lambda: {lost, saved} <= ends(lab).keys(), 60, what="both drones gone", every_s=0.5)

        told = notices(lab.site)
        for diary in (computes, counts):
            assert diary.at("TERM") - told[0] <= 4, "with all but 4 s of the grace left"
        began, ended = (
            computes.at("works"),
            max(at for at, said in computes.lines() if at < told[-1] + GRACE_S + 1),
        )
        assert ended - computes.at("TERM") >= GRACE_S - 4 - 2.5, (
            "and it could use what was left of it"
        )
        assert ended - told[-1] <= GRACE_S

        cost = ends(lab)[lost]["lost_gpu_s"]
        assert isinstance(cost, float) and abs(cost - (ended - began)) <= 0.05 * (ended - began)
        unsaved = ends(lab)[saved]["lost_gpu_s"]
        assert isinstance(unsaved, float) and unsaved <= 2, "nothing but the end of its grace"
        assert {ends(lab)[each]["state"] for each in (lost, saved)} == {"preempted"}

        until(lambda: not lab.site.jobs(owners), 60, what="the owner's jobs are done")
        until(
            lambda: len(counts.said("from")) == 2,
            120,
            what="the job that saves goes on",
            every_s=0.5,
        )
        enough.touch()
        enough.chmod(0o644)
        until(lambda: not lab.overlay.jobs(second), 60, what="to its end", every_s=0.5)
        assert counts.said("from") == ["from 0", f"from {counts.said('at')[0].split()[1]}"], (
            "where it had stopped"
        )
        lab.overlay.remove(first)
