"""Drones as pilots, accounting and people see them: the parts that need no daemons."""

from __future__ import annotations

from pathlib import Path

from adapters.htcondor.classads import number
from adapters.htcondor.overlay.matching import template
from provisioner.config import load_site
from provisioner.drone import environment
from provisioner.model import DroneId, DroneType, StartOrder

SITE = """\
site: kit
adapter: local
glidein_site: FZK-LCG2
types:
  a100:
    gpus: 1
    cpus: 8
    memory: 20 GiB
    disk: 50 GiB
    benchmark:
      - {name: HEPscore23, value: 14.409, date: "2026-11-01", average: 12}
      - {name: HEPSPEC, value: 14, date: "2026-10-01"}
      - {name: MLPERF, value: 1600, date: "2026-11-01", per: gpu}
    speed: {fp64: 9.7}
  plain: {gpus: 0, cpus: 8, memory: 20 GiB, disk: 50 GiB}
options: {root: drones}
"""


def types_of(tmp_path: Path, text: str) -> dict[str, DroneType]:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return {kind.name: kind for kind in load_site(file).types}


def test_benchmarks_become_what_the_slot_publishes(tmp_path: Path) -> None:
    types = types_of(tmp_path, SITE)
    told = environment(StartOrder(DroneId("d"), types["a100"], 1.0, 1.0))
    assert told["DRONE_AD"].split() == [
        'GLIDEIN_Site="FZK-LCG2"',
        "ApelSpecs=[HEPscore23=14.409;HEPSPEC=14]",
        "GpuSpecs=[MLPERF=1600]",
        "HEPSPEC_PER_CORE=14.409",
        "ApelScaling=1.20075",
        'BenchmarkDates=[HEPscore23="2026-11-01";HEPSPEC="2026-10-01";MLPERF="2026-11-01"]',
        "GpuSpeed=[FP64=9.7]",
    ]
    assert types["plain"].published == {"GLIDEIN_Site": '"FZK-LCG2"'}
    nameless = types_of(tmp_path, SITE.replace("glidein_site: FZK-LCG2\n", ""))["plain"]
    assert "DRONE_AD" not in environment(StartOrder(DroneId("d"), nameless, 1.0, 1.0))


def test_jobs_are_matched_with_what_the_slot_will_publish(tmp_path: Path) -> None:
    types = types_of(tmp_path, SITE)
    assert number(template(types["a100"]), "HEPSPEC_PER_CORE") == 14.409
    assert "ApelSpecs" not in template(types["plain"])
