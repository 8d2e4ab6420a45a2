"""Slurm, its sshd or the line to it go away, at the worst moment: no drone is lost, left behind or there twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.labs.controller import Sightings
from tests.labs.facilities import HorekaLab, horeka
from tests.labs.htcondor import Condor, kill, meanwhile, until
from tests.labs.slurm import SlurmLab

pytestmark = [pytest.mark.matrix, pytest.mark.xdist_group("slurm")]

SLOW_SBATCH = """\
#!/bin/sh
# As the site's sbatch, but the answer takes its time: what it has submitted is told only a while after.
out=$(mktemp)
/opt/real/sbatch "$@" >"$out"
code=$?
: >{told}
sleep {answers_after_s}
cat "$out"
exit $code
"""


def test_slurmctld_is_down_for_a_minute(
    newest_condor: Condor, new_slurm: Callable[..., SlurmLab]
) -> None:
    cluster = new_slurm(h100=0, a100=1)
    with horeka(newest_condor, cluster, "tools", most=4) as lab:
        lab.controller.idle_s = 120
        lab.controller.start()
        with meanwhile(seen := Sightings(lab.controller, lab.alive)):
            first = lab.submit(2)
            until(
                lambda: lab.overlay.statuses(first) == [2, 2], 120, what="two jobs run", every_s=0.5
            )
            before = {d["id"] for d in lab.controller.live()}
            cluster.stop_daemon("slurmctld")
            second = lab.submit(2)  # now more drones are wanted than can be asked for
            time.sleep(60)
            assert {d["id"] for d in lab.controller.live()} >= before, (
                "nothing is given up for an outage"
            )
            said = lab.controller.prints("status")
            assert "horeka" in said and ("down" in said.lower() or "contact" in said.lower()), said
            cluster.start_daemon("slurmctld")
            until(
                lambda: lab.overlay.statuses(second) == [2, 2],
                240,
                what="the others run too",
                every_s=0.5,
            )
            assert lab.overlay.statuses(first) == [2, 2]
            assert before <= {d["id"] for d in lab.controller.live()}
            lab.let_go()
            lab.controller.ticks(1)
        seen.no_orphan_no_duplicate(4)


def test_the_line_is_cut_while_sbatch_has_been_heard_and_not_answered(
    newest_condor: Condor, new_slurm: Callable[..., SlurmLab]
) -> None:
    cluster = new_slurm(h100=0, a100=1)
    told = cluster.shared / "submitted"
    with horeka(newest_condor, cluster, "ssh", most=4) as lab:
        lab.controller.start()
        # by its own name: sbatch looks at what it is called
        cluster.run("mkdir", "-p", "/opt/real", user="root")
        cluster.run("mv", "/usr/bin/sbatch", "/opt/real/sbatch", user="root")
        script = SLOW_SBATCH.format(told=told, answers_after_s=6)
        cluster.run(
            "sh",
            "-c",
            "cat >/usr/bin/sbatch && chmod 755 /usr/bin/sbatch",
            user="root",
            stdin=script,
        )
        with meanwhile(seen := Sightings(lab.controller, lab.alive)):
            jobs = lab.submit(2)
            until(Path(told).exists, 60, what="sbatch has submitted, and not said so", every_s=0.05)
            cut(cluster)
            cluster.run("mv", "/opt/real/sbatch", "/usr/bin/sbatch", user="root")
            until(
                lambda: lab.overlay.statuses(jobs) == [2, 2], 150, what="the jobs run", every_s=0.5
            )
            assert len(lab.controller.drones()) == 2, "those that were accepted, and no others"
            # And the host itself stops answering for a while.
            cluster.stop_daemon("sshd")
            cut(cluster)
            until(lambda: _faulty(lab), 60, what="status tells", every_s=0.5)
            assert len(lab.controller.live()) == 2
            cluster.start_daemon("sshd")
            until(lambda: not _faulty(lab), 120, what="it is back", every_s=0.5)
            lab.let_go()
            lab.nothing_left()
        seen.no_orphan_no_duplicate(4)


def _faulty(lab: HorekaLab) -> bool:
    return any(
        view["view"] != "overlay" and view["fault"]
        for view in lab.controller.json("status")["views"]
    )


def cut(cluster: SlurmLab) -> None:
    """End the connections that drone has by ssh, and not the daemon that takes new ones."""
    ours = ("sshd: drone", "sshd-session: drone")
    kill(*(pid for pid, called in cluster.processes().items() if called.startswith(ours)))
