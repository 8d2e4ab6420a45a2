"""`site_configs/topas.yaml` fits its hardware: it loads, its drones fit its nodes, its reserve fits both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adapters.htcondor.classads import expression
from adapters.htcondor.site.blocking import gaps, render
from adapters.htcondor.site.nodes import PoolMachine, machines_of, nodes
from provisioner.config import SiteConfig, load
from tests.htcondor_site.slot_ads import A100, V100S, pslot
from tests.htcondor_site.test_blocking import loaded

FILE = Path(__file__).parents[2] / "site_configs" / "topas.yaml"
CONTROLLER = """
controller: kit
store: {path: provisioner.db}
overlay: {adapter: embedded, options: {path: queue.db}}
sites: [TOPAS]
"""


@pytest.fixture
def topas(tmp_path: Path) -> SiteConfig:
    (tmp_path / "provisioner.yaml").write_text(CONTROLLER.replace("TOPAS", str(FILE)))
    [site] = load(tmp_path / "provisioner.yaml").sites
    return site


def hardware(topas: SiteConfig) -> tuple[PoolMachine, ...]:
    """The real nodes, running what is printed for them."""
    ads = [pslot(f"topas-v100s-{n}.etp.test", gpu=V100S) for n in (1, 2, 3)]
    ads += [
        pslot(
            "topas-v100-1.etp.test",
            gpu=("Tesla V100-SXM2-32GB", 32510, 7.0),
            cpus=48,
            memory_mib=385_000,
        )
    ]
    ads += [pslot(f"topas-a100-{n}.etp.test", gpu=("A100-PCIE-40GB", *A100[1:])) for n in (1, 2, 3)]
    conf = loaded(render(topas.policy))
    for ad in ads:
        for name in ("START", "RANK", "MAXJOBRETIREMENTTIME", "MACHINEMAXVACATETIME"):
            ad[name] = expression(conf[name])
    return machines_of(ads, 0)


def demanded(topas: SiteConfig) -> dict[str, str]:
    return {name: options.requirements or "" for name, options in topas.options.types.items()}


def test_each_node_could_host_the_drones_that_are_meant_for_it(topas: SiteConfig) -> None:
    found = nodes(hardware(topas), topas.types, demanded(topas))
    assert {node.name.rpartition("-")[0]: node.types for node in found} == {
        "topas-v100s": ("v100s", "cpu"),
        "topas-v100": ("v100", "cpu"),
        "topas-a100": ("a100", "cpu"),
    }
    assert sum(node.gpu_milli for node in found) == topas.policy.max_gpu_milli == 56_000
    assert sum(kind.max_drones or 0 for kind in topas.types if kind.gpu_milli) == 56


def test_the_printed_configuration_leaves_no_gap(topas: SiteConfig) -> None:
    assert gaps(hardware(topas), topas.policy, topas.types, demanded(topas)) == ()


@pytest.mark.parametrize("command", ["check --config", "render blocking --site topas --config"])
def test_check_and_render_need_no_bindings(command: str) -> None:
    missing = "import sys; sys.modules.update(classad2=None, htcondor2=None)"
    code = f"{missing}; from provisioner.cli import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, *command.split(), str(FILE)], cwd=FILE.parents[1], check=True
    )
