"""A controller and two sites as their operator declares them, for worlds that are made of them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from provisioner.config import Settings, load
from provisioner.simulator.world_file import WorldPlan, world_of

CONTROLLER = """
controller: test
store: {path: test.db}
overlay: {adapter: not-installed, options: {nonsense: 1}}
sites: [farm.yaml, cloud.yaml]
policy: {idle_timeout: 30s}
"""
FARM = """
site: farm
adapter: htcondor
limits: {max_drones: 20, max_gpus: 12}
types:
  v100: {gpus: 1, gpu_model: V100, vram: 32 GiB, cpus: 4, memory: 8 GiB, disk: 10 GiB, max_drones: 8}
  a100: {gpus: 1, gpu_model: A100, vram: 40 GiB, cpus: 4, memory: 8 GiB, disk: 10 GiB}
  a100x4: {gpus: 4, gpu_model: A100, vram: 40 GiB, cpus: 16, memory: 32 GiB, disk: 10 GiB, max_drones: 2}
  cpu: {gpus: 0, cpus: 4, memory: 8 GiB, disk: 10 GiB, max_drones: 3}
"""
CLOUD = """
site: cloud
adapter: openstack
limits: {max_drones: 4}
types:
  t4: {gpus: 1, gpu_model: T4, vram: 16 GiB, cpus: 4, memory: 8 GiB, disk: 10 GiB}
"""
SERIES = "vc,t_s,total_gpus,busy_gpus,pending_gpus\nvcA,0,10,4,2\nvcA,3600,10,8,0\n"
"""The owner's load, beside the configuration as ``load.csv``."""

BROKEN = (
    "sites: {farn: {}}",
    "sites:\n  farm:\n    queu: 3s\n",
    "sites:\n  farm:\n    boot: 75\n",
    "sites:\n  farm:\n    boot: {median: 5s}\n",
    "sites:\n  farm:\n    boot: {low: 5s, high: 1s}\n",
    "sites:\n  farm:\n    failures: {dies_young: 0.7, eats_jobs: 0.7}\n",
    "sites:\n  farm:\n    nodes: {x: {nodes: 4}}\n",
    "sites:\n  cloud:\n    nodes:\n      x: {gpus: 4, serves: [t5]}\n",
    "sites:\n  cloud:\n    nodes:\n      x: {gpus: 4, serves: [t4]}\n      z: {gpus: 4, serves: [t4]}\n",
    "sites:\n  farm:\n    nodes:\n      x: {gpus: 4, serves: [a100, a100x4, cpu]}\n",
    "sites:\n  farm:\n    nodes:\n      x: {gpus: 2}\n",
    "sites:\n  farm:\n    types: {a10: {boot: 1s}}\n",
    "sites:\n  farm:\n    owner: {file: nothing.csv, vc: vcA}\n",
    "sites:\n  farm:\n    owner: {file: load.csv, vc: vcB}\n",
    "sites:\n  farm:\n    owner: {file: farm.yaml, vc: vcA}\n",
    "sites:\n  farm:\n    owner: {file: load.csv, vc: vcA, nodes: [x]}\n",
    "sites:\n  farm:\n    owner: {file: load.csv, vc: vcA}\n    reports_nodes: true\n",
    "hardware_faults: [{kind: dwn, at: 1h, for: 1h}]",
    "hardware_faults: [{kind: downtime, where: mars, at: 1h, for: 1h}]",
    "hardware_faults: [{kind: downtime, at: 1h, for: 1h}]",
    "bursts: [{service: cms, at: 1h, for: 1h, rate: 1}]",
    "bursts: [{service: cms, at: 1h, for: 1h, rate: 0}]",
    "pool: {update: 0s}",
    "- 1",
)
"""World files with one mistake each; the golden records have what is said of them."""


def declared(directory: Path) -> Settings:
    """Written there, and read."""
    for name, text in (("provisioner", CONTROLLER), ("farm", FARM), ("cloud", CLOUD)):
        (directory / f"{name}.yaml").write_text(text)
    (directory / "load.csv").write_text(SERIES)
    return load(directory / "provisioner.yaml", connects=False)


def world(settings: Settings, text: str, span_s: float = 86400.0) -> WorldPlan:
    """What a world file with this text makes of them."""
    path = settings.path.parent / "world.yaml"
    path.write_text(textwrap.dedent(text))
    return world_of(settings, path, span_s=span_s)
