"""A shadow beside a real TARDIS: nothing of either is touched, and its report follows from the records of both."""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.labs import htcondor
from tests.labs.htcondor import Ad, Condor, gpu_job, meanwhile, until
from tests.labs.htcondor_sites import Happened, NodeShape, TopasLab, events, topas_lab
from tests.labs.tardis import OVERLAY, Tardis, running_tardis

BURSTS = ((6, 20), (4, 15))
"""Jobs of one GPU, and how long each takes, in seconds. TARDIS may have four drones."""
HOUR = tuple((3 + n % 6, 20 + 15 * (n % 4)) for n in range(24))
PAUSE_S = 40.0
LAG_S = 4.0
"""Two observers may see the begin or end of a job or a drone this far apart: ads come every 2 s, polls every 1 s."""


@pytest.fixture
def beside(newest_condor: Condor) -> Iterator[tuple[TopasLab, Tardis]]:
    """A pool, a site with four GPUs, a shadow that runs already, and TARDIS."""
    try:
        htcondor.fetched("get-tardis.sh")
    except htcondor.LabError as error:
        pytest.skip(str(error))
    nodes = (NodeShape("node1", gpus=4),)
    with (
        topas_lab(newest_condor, nodes, overlay_config=OVERLAY) as lab,
        htcondor.lab_directory("tardis") as directory,
    ):
        lab.controller.run_options = ("--shadow",)
        lab.controller.start()
        with running_tardis(directory / "t", lab.overlay, lab.site) as tardis:
            yield lab, tardis


def spans_s(found: list[tuple[float, Happened, str]]) -> dict[str, float]:
    """Return how long each job ran, by its events."""
    began: dict[str, float] = {}
    ran: Counter[str] = Counter()
    for at, what, job in found:
        if what is Happened.STARTED:
            began[job] = at
        elif job in began and what in (Happened.ENDED, Happened.REMOVED, Happened.EVICTED):
            ran[job] += at - began.pop(job)
    return dict(ran)


def recorded_use(record: Path) -> tuple[float, float, int]:
    """Return GPU-seconds in the pool, those claimed, and drones that joined, by the observations as they are stored."""
    with closing(sqlite3.connect(record)) as sql:
        rows = sql.execute("SELECT at, last_at, body FROM observations ORDER BY seq").fetchall()
    held = busy = 0.0
    joined = 0
    for (at, last_at, body), following in pairwise([*rows, None]):
        seen = json.loads(zlib.decompress(body))
        for each in seen.get("others") or ():
            lasted_s = (last_at if following is None else following[0]) - at
            held += lasted_s * each["gpu_milli"] / 1000
            busy += lasted_s * each["busy_gpu_milli"] / 1000
            joined = max(joined, each.get("joined", 0))
    return held, busy, joined


@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("bursts", [BURSTS, pytest.param(HOUR, id="hour")])
def test_it_touches_nothing_and_its_figures_follow_from_both_records(
    beside: tuple[TopasLab, Tardis], bursts: tuple[tuple[int, int], ...]
) -> None:
    lab, tardis = beside
    shadow, overlay = lab.controller, lab.overlay
    seen: list[tuple[float, list[Ad]]] = []
    clusters = []
    with meanwhile(lambda: seen.append((time.time(), tardis.drones())), 1.0):
        for jobs, seconds in bursts:
            clusters.append(overlay.submit(gpu_job(seconds, n=jobs)))
            until(
                lambda: not overlay.jobs(),
                300 + jobs * seconds,
                what="the jobs are done",
                every_s=1,
            )
            time.sleep(PAUSE_S)
        number = sum(jobs for jobs, _ in bursts)
        until(
            lambda: len(shadow.record.completions(0.0, 1e12)) == number,
            150,
            what="the shadow has read the history",
        )
        assert tardis.process is not None and tardis.process.poll() is None, tardis.log()[-3000:]
        assert "a shadow, it starts nothing" in " ".join(shadow.prints("status").split()), (
            "wrapped or not"
        )
        told = shadow.json("shadow", "report", "--boot", "5s", "--negotiation", "2s")
        shadow.stop()
    untouched(lab, tardis, number)
    theirs_follow(told, lab, clusters, seen)
    ours_follow(told, lab, clusters)


def untouched(lab: TopasLab, tardis: Tardis, number: int) -> None:
    """Check that each drone, each removal and each drain is TARDIS's, and that no job was disturbed."""
    here, there = events(lab.overlay), events(lab.site)
    assert Counter(e.what for e in here) == {
        Happened.SUBMITTED: number,
        Happened.STARTED: number,
        Happened.ENDED: number,
    }
    assert sum(e.what is Happened.SUBMITTED for e in there) == len(tardis.calls("condor_submit"))
    removed = {e.job for e in there if e.what is Happened.REMOVED}
    assert removed <= {job for call in tardis.calls("condor_rm") for job in call.split()}
    assert not lab.controller.record.drones(ended=None) and not lab.controller.processes()
    assert "order" not in lab.controller.log(), "no line of its log is about an order"
    assert not lab.overlay.run(
        "condor_status", "-any", "-constraint", "DroneOrderFor isnt undefined", "-af", "Name"
    )


def theirs_follow(
    told: dict, lab: TopasLab, clusters: list[int], seen: list[tuple[float, list[Ad]]]
) -> None:
    """Check the other system's figures: against the record, and against what the pools and our own looks tell."""
    other = next(row for row in told["uses"][:2] if row["system"] == "other")
    held, busy, joined = recorded_use(lab.controller.record.path)
    drones = {ad["TardisDroneUuid"] for _, ads in seen for ad in ads}
    assert other["drones"] == joined == len(drones) >= 4
    jobs, until_at = sum(row["jobs"] for row in told["uses"][:2]) // 2, told["until_at"]
    by_events = [(e.at, e.what, e.job) for e in events(lab.overlay, *clusters)]
    assert other["busy_gpu_s"] == pytest.approx(sum(spans_s(by_events).values()), abs=LAG_S * jobs)
    looked = sum((b - a) * len(ads) for (a, ads), (b, _) in pairwise(seen) if a <= until_at)
    assert other["gpu_s"] == pytest.approx(looked, abs=LAG_S * 2 * len(drones))
    assert other["gpu_s"] == pytest.approx(held, abs=LAG_S * 4) and other[
        "busy_gpu_s"
    ] == pytest.approx(busy, abs=0.01)
    history = [ad for cluster in clusters for ad in lab.overlay.history(cluster)]
    waits = sorted(ad["CompletionDate"] - ad["QDate"] - wall_s(ad) for ad in history)
    assert other["jobs"] == len(waits) == told["jobs"]
    assert other["wait_mean_s"] == pytest.approx(statistics.fmean(waits), abs=1.5)
    assert other["wait_p95_s"] == pytest.approx(waits[int(0.95 * len(waits))], abs=1.5)


def wall_s(ad: Ad) -> float:
    """Return how long a job computed in its only run."""
    return ad["CompletionDate"] - max(
        ad["JobCurrentStartDate"], ad.get("JobCurrentStartExecutingDate", 0)
    )


def ours_follow(told: dict, lab: TopasLab, clusters: list[int]) -> None:
    """Check our figures: the same jobs with the same run times, and sums that add up."""
    other, ours = told["uses"][:2]
    history = [ad for cluster in clusters for ad in lab.overlay.history(cluster)]
    assert ours["jobs"] == len(history)
    assert ours["busy_gpu_s"] == pytest.approx(sum(map(wall_s, history)), abs=len(history))
    assert 1 <= ours["drones"] <= len(history)
    saved = told["replayed"] * other["idle_gpu_s"] - ours["idle_gpu_s"]
    # claims include starting a job: slow under load
    replayed = min(1.0, ours["busy_gpu_s"] / other["busy_gpu_s"])
    assert told["saved_gpu_s"] == pytest.approx(saved, rel=0.01)
    assert told["replayed"] == pytest.approx(replayed, abs=0.01) and replayed > 0.5
    for row in told["uses"][:2]:
        assert row["idle_gpu_s"] == pytest.approx(row["gpu_s"] - row["busy_gpu_s"], abs=0.01)
        at_sites = [each for each in told["uses"][2:] if each["system"] == row["system"]]
        assert {each["site"] for each in at_sites} == {"topas"}
        assert sum(each["gpu_s"] for each in at_sites) == pytest.approx(row["gpu_s"], abs=0.01)
