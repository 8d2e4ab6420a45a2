"""Workloads: made from seeds, read from traces."""

from __future__ import annotations

import gzip
from pathlib import Path

from provisioner.sim.draws import Fixed
from provisioner.sim.jobs import Wants
from provisioner.sim.workload import LARGE, PLAIN, SMALL, Shape, burst, day, poisson_mix, read_trace

TRACE = """job_id,submit_s,duration_s,gpus,gpu_milli,vram_mb,cpus,mem_mb,gpu_model,user,group,priority,status
0,0,3600,1,1000,,12.0,24576,V100M16|V100M32,,,LS,Running
1,50,600,1,110,,4.0,15258,,ann,,LS,Running
2,60,,1,1000,,4.0,15258,,,,LS,Running
3,70,600,0,0,,4.0,15258,,,,LS,Running
4,100,60,2,1000,16000,,,,,lab,,
5,500,60,1,,,,,,,lab,,
"""


def test_a_day_has_its_jobs_in_order_and_within_the_day() -> None:
    jobs = day(count=4000, seed=5)
    assert len(jobs) == 4000
    assert [j.submit_s for j in jobs] == sorted(j.submit_s for j in jobs)
    assert all(0 <= j.submit_s <= 86400 for j in jobs)
    assert {j.wants for j in jobs} == {PLAIN.wants, LARGE.wants, SMALL.wants}
    assert jobs == day(count=4000, seed=5) != day(count=4000, seed=6)


def test_a_mix_has_the_rate_and_shares_asked_for() -> None:
    shapes = [Shape(Wants(owner="a"), Fixed(1.0), 3.0), Shape(Wants(owner="b"), Fixed(1.0), 1.0)]
    jobs = poisson_mix(shapes, per_hour=100.0, span_s=100 * 3600.0, seed=1)
    assert 9_700 < len(jobs) < 10_300
    assert 0.72 < sum(j.wants.owner == "a" for j in jobs) / len(jobs) < 0.78


def test_a_burst_comes_at_once() -> None:
    assert {j.submit_s for j in burst(7, at_s=30.0)} == {30.0}


def test_a_trace_is_read_in_the_common_form_plain_or_packed(tmp_path: Path) -> None:
    plain, packed = tmp_path / "t.csv", tmp_path / "t.csv.gz"
    plain.write_text(TRACE)
    with gzip.open(packed, "wt") as out:
        out.write(TRACE)
    jobs = read_trace(plain)
    assert jobs == read_trace(packed)
    told = [(j.submit_s, j.duration_s, w.gpu_milli, w.cpus, w.memory_mib, w.owner) for j in jobs for w in [j.wants]]
    assert told == [
        (0.0, 3600.0, 1000, 12, 24576, "nobody"),
        (50.0, 600.0, 110, 4, 15258, "ann"),
        (100.0, 60.0, 2000, 1, 1024, "lab"),
        (500.0, 60.0, 1000, 1, 1024, "lab"),
    ]
    assert [j.submit_s for j in read_trace(plain, from_s=40.0, span_s=70.0)] == [10.0, 60.0]
    assert len(read_trace(plain, limit=2)) == 2
