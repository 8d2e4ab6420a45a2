"""The users' page in a real pool: each submit file asks for what the page says, and its jobs run where it says."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.labs.controller import BIG, SMALL, LabController, LabSite, Settings
from tests.labs.htcondor import Pool, fetched, until
from tests.users_page import NEEDS, ON_SIGTERM, PRINT_FORMAT, REASONS, SUBMIT_FILES

TRAIN = f"""#!/usr/bin/env python3
import os, time

def save(name):
    time.sleep(0.5)
    open(name, "w").write("the state")

{ON_SIGTERM}
if os.path.exists("state.pt"):
    print("goes on with", open("state.pt").read())
while "ON_EXIT_OR_EVICT" in open(".job.ad").read() and not os.path.exists("state.pt"):
    time.sleep(0.1)
"""
"""A job that keeps its files at an eviction works until it is evicted; all others end at once."""


@dataclass(frozen=True)
class SiteWithSshd(LabSite):
    """A site whose nodes let interactive jobs in."""

    def settings(self, controller: LabController) -> Settings:
        settings = super().settings(controller)
        path = f"{fetched('get-sshd.sh')}:/usr/bin:/bin"
        return {**settings, "options": {**settings["options"], "env": {"PATH": path}}}


ROOM = {"cpus": 16, "memory": "64 GiB", "disk": "20 GiB"}
SITES = (
    SiteWithSshd("whole", "a100", BIG.gpu, 4, type=ROOM),
    replace(SMALL, name="slices", type={**ROOM, "sharing": "time-sliced", "shares": 4}),
    replace(BIG, name="four", kind="a100x4", type={**ROOM, "gpus": 4, "price": 8}),
)
STARTED = {
    "one-gpu.sub": "whole/a100",
    "share.sub": "slices/v100",
    "four-gpus.sub": "four/a100x4",
    "shell.sub": "whole/a100",
}
"""Type of the drones that are started for the jobs of a file."""


def classes(controller: LabController) -> dict[str, dict[str, Any]]:
    """Return the job classes by what their jobs ask for."""
    return {row["needs"]: row for row in controller.json("demand")["items"]}


def test_each_submit_file_asks_for_what_the_page_says_and_runs_there(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    controller.sites = SITES
    train = pool.dir / "jobs" / "train.py"
    train.write_text(TRAIN)
    train.chmod(0o755)
    pool.account.give(train)
    clusters = {name: pool.submit(text) for name, text in SUBMIT_FILES.items()}
    controller.start()
    named = dict[str, Any]()

    def all_seen() -> bool:
        """Collect the classes: the first jobs may be done before the last ones are seen."""
        named.update(classes(controller))
        return len(named) == len(clusters)

    until(all_seen, 60, what="all are seen", every_s=0.5)
    assert set(named) == set(NEEDS.values())

    runs = [cluster for name, cluster in clusters.items() if name not in REASONS]
    until(lambda: pool.statuses(clusters["one-gpu.sub"]) == [2], 120, what="it works", every_s=0.5)
    (ad,) = pool.jobs(clusters["one-gpu.sub"])
    drone = str(ad["RemoteHost"]).split("@")[1]
    controller.prints("drones", "drain", drone, "--mode", "graceful", "--reason", "test")
    until(lambda: not any(map(pool.jobs, runs)), 180, what="all jobs are done", every_s=0.5)
    assert set(STARTED) | set(REASONS) == set(SUBMIT_FILES)
    of_class = {named[needs]["id"]: name for name, needs in NEEDS.items()}
    started = {(of_class[each["for_class"]], each["type"]) for each in controller.drones()}
    assert started == set(STARTED.items())
    output = (pool.dir / "jobs" / f"{clusters['one-gpu.sub']}.0.out").read_text()
    assert output == "goes on with the state\n"

    shell = pool.file("shell.sub")
    shell.write_text(SUBMIT_FILES["shell.sub"])
    shell.chmod(0o644)
    submit = f"condor_submit -interactive {shlex.quote(str(shell))}"
    said = pool.run(
        "sh", "-c", submit, identity="alice", stdin="echo CPUs: $OMP_NUM_THREADS\n", timeout_s=180
    )
    assert "CPUs: 2" in said.splitlines()
    for name, kind in REASONS.items():
        row = classes(controller)[NEEDS[name]]
        assert row["reasons"][0]["kind"] == kind
        words = " ".join(controller.prints("explain", "job", f"{clusters[name]}.0").split())
        assert row["why"] in words


def test_condor_q_prints_the_address_of_each_job(pool: Pool) -> None:
    file = pool.file("gpu-jobs.cpf")
    file.write_text(PRINT_FORMAT)
    file.chmod(0o644)
    cluster = pool.submit(SUBMIT_FILES["share.sub"].replace("train.py", "/bin/sh"))
    printed = pool.run("condor_q", "-allusers", "-print-format", str(file)).splitlines()
    assert [line.split() for line in printed if "https:" in line] == [
        [f"{cluster}.{n}", "alice", "1", f"https://provisioner.example.org/job/{cluster}.{n}"]
        for n in range(4)
    ]
