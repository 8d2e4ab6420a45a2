"""The account of drones on a Slurm cluster that shares files with the controller's host, as a hostile job uses it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.labs.facilities import horeka
from tests.labs.htcondor import Condor, gpu_job, own, until
from tests.labs.slurm import SlurmLab

pytestmark = [pytest.mark.matrix, pytest.mark.xdist_group("slurm")]

SPY = Path(__file__).with_name("spy.py").read_text()
LOOK = """\
until [ -e {other}.starts ]; do sleep 0.2; done
for job in $(squeue --me --noheader --format=%A); do
    scontrol write batch_script $job - | sed -n '/END_OF_FILES/,/^END_OF_FILES/p' | sed '1d;$d' | base64 -d
done | grep -aoE 'eyJ[A-Za-z0-9_-]+[.]eyJ[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+' | wc -l
exec python3 - {places} <<'EOF'
{spy}
EOF
"""


def test_a_job_by_ssh_reads_nothing_of_the_controller_but_scripts_of_its_account(
    newest_condor: Condor, slurm: SlurmLab
) -> None:
    """The configuration is accepted without `same_account`."""
    with horeka(newest_condor, slurm, "ssh", options={"same_account": False}) as lab:
        lab.controller.directory = slurm.shared / own("controller")
        lab.controller.directory.mkdir(mode=0o750)  # as the service's StateDirectory
        lab.controller.start()
        lab.submit(1)
        places = f"{lab.controller.directory} {slurm.key.parent} /home/drone /root"
        script = LOOK.format(other=lab.enough, places=places, spy=SPY)
        spy = lab.overlay.submit(gpu_job(program=lab.overlay.program("spy", script)))
        until(lambda: not lab.overlay.jobs(spy), 60, what="the spy is done", every_s=0.5)
        tokens, told = (lab.overlay.dir / "jobs" / f"out.{spy}.0").read_text().split("\n", 1)
        seen = json.loads(told)
        assert seen["account"] == "drone" and seen["tried"] > 20 and seen["others"] > 1, seen
        assert seen["files"] == seen["sockets"] == seen["processes"] == seen["tokens"] == [], seen
        assert int(tokens) == 2, "Slurm shows an account the scripts of its jobs"
        lab.let_go()
