"""MIG layouts: which are possible, the script that makes them, and nodes that differ."""

from __future__ import annotations

import os
import subprocess
from itertools import combinations_with_replacement, permutations, product
from pathlib import Path

import classad2
import pytest

from adapters.htcondor.site.mig import mig_gaps
from adapters.htcondor.site.nodes import machines_of
from provisioner import config, mig
from provisioner.answers.errors import Exit
from provisioner.config import ConfigError
from provisioner.drone import script
from provisioner.model import MigLayout, SitePolicy
from tests.cli.conftest import Cli
from tests.htcondor_site.slot_ads import A100, pslot

ROOT = Path(__file__).parents[2]
MIG = "\nmig: [{gpu_model: A100-40, layout: [3g.20gb, 3g.20gb]}]\n"
BALANCED = ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb")
SITE = """\
site: topas
adapter: local
options: {root: drones}
mig: [{gpu_model: MODEL, layout: LAYOUT}]
types:
  a100: {gpus: 1, cpus: 8, memory: 20 GiB, disk: 1 GiB}
"""


@pytest.mark.parametrize(
    ("model", "layout", "why"),
    [
        ("A100-40", BALANCED, ""),
        ("A100-40", ("1g.5gb",) * 7, ""),
        ("A100-40", ("4g.20gb", "2g.10gb", "1g.5gb"), ""),
        ("A100-80", ("3g.40gb", "3g.40gb"), ""),
        ("H100-80", ("1g.20gb",) * 4, ""),
        ("H100-96", ("4g.48gb", "3g.48gb"), ""),
        ("H100-94", ("4g.47gb", "3g.47gb"), ""),
        ("H100-94", ("1g.24gb",) * 4, ""),
        ("H200-141", ("1g.18gb+me", *("1g.18gb",) * 6), ""),
        ("A30-24", ("2g.12gb+me", "1g.6gb", "1g.6gb"), ""),
        ("A30-24", ("2g.12gb", "2g.12gb", "1g.6gb"), "5 compute slices, and a GPU has 4"),
        ("A30-24", ("4g.24gb+me",), "choose from 1g.6gb, 2g.12gb, 4g.24gb, 1g.6gb+me, 2g.12gb+me"),
        ("H100-80", ("1g.10gb+me", "1g.10gb"), ""),
        ("A100-40", ("1g.5gb",) * 8, "8 compute slices, and a GPU has 7"),
        ("A100-40", ("3g.20gb", "3g.20gb", "1g.5gb"), "9 memory slices, and a GPU has 8"),
        ("A100-40", ("4g.20gb", "1g.10gb", "1g.10gb", "1g.5gb"), "9 memory slices"),
        ("A100-40", ("3g.20gb", "1g.10gb", "2g.10gb", "1g.5gb"), "9 memory slices"),
        ("A100-80", ("1g.5gb",), "A100-80 has no MIG profile `1g.5gb`: choose from 1g.10gb, "),
        ("H100-80", ("2g.20gb+me",), "no MIG profile `2g.20gb+me`"),
        ("H100-80", ("1g.10gb+me",) * 2, "one instance with `+me`"),
    ],
)
def test_layouts_that_a_gpu_cannot_have_are_refused(
    model: str, layout: tuple[str, ...], why: str
) -> None:
    said = mig.mistake(model, layout)
    assert why in said and bool(said) == bool(why), said


def test_the_largest_layouts_of_an_a100_are_those_of_the_guide() -> None:
    """Each combination that fits in 7 compute and 8 memory slices is tried in each order and at each place."""
    profiles = mig.PROFILES["A100-40"]
    for size in range(1, 5):
        for layout in combinations_with_replacement(profiles, size):
            places = (
                [
                    range(at, at + profiles[name].memory)
                    for name, at in zip(order, starts, strict=True)
                ]
                for order in [*dict.fromkeys(permutations(layout))][:1]
                for starts in product(*(profiles[name].starts for name in order))
            )
            there = any(
                len({s for place in each for s in place}) == sum(map(len, each)) for each in places
            )
            possible = there and sum(profiles[name].compute for name in layout) <= 7
            assert (mig.mistake("A100-40", layout) == "") == possible, layout


def test_an_impossible_layout_is_a_mistake_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "topas.yaml"
    path.write_text(SITE.replace("MODEL", "A100-40").replace("LAYOUT", "[4g.20gb, 4g.20gb]"))
    with pytest.raises(
        ConfigError, match=r"topas.yaml:4:36: `layout`: 8 compute slices, and a GPU has 7"
    ):
        config.load_site(path)
    path.write_text(SITE.replace("MODEL", "H100-96").replace("LAYOUT", "[3g.48gb, 3g.48gb]"))
    assert config.load_site(path).policy.mig == (MigLayout("H100-96", ("3g.48gb", "3g.48gb")),)


GPUS = "0, NVIDIA A100-SXM4-40GB\\n1, NVIDIA T4\\n2, NVIDIA A100-SXM4-40GB\\n"
FAKE = """#!/bin/sh
case "$*" in
    --query-gpu*) printf 'GPUS' ;;
    *) echo "$*"; case $* in *-dci | *-dgi) exit 6 ;; esac ;;
esac
"""


def run_on(
    path: Path, rendered: str, node: str, gpus: str = GPUS
) -> subprocess.CompletedProcess[str]:
    """Run a rendered script on a node with this full name and GPUs, whose ``nvidia-smi`` prints its arguments."""
    short = f"#!/bin/sh\ncase $1 in -s) echo {node.partition('.')[0]} ;; *) echo {node} ;; esac\n"
    for name, text in (("nvidia-smi", FAKE.replace("GPUS", gpus)), ("hostname", short)):
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    env = {"PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-c", rendered], env=env, text=True, capture_output=True, timeout=60
    )


LAYOUTS = (
    ("A100-40", ("1g.5gb",), ("n1", "m[0-9]")),
    ("A100-40", ("2g.10gb",), ("*.gpu.kit.edu", "n1")),
    ("A100-40", ("3g.20gb",), ("n*",)),
)


@pytest.mark.parametrize(
    ("node", "layout"),
    [
        ("n1.gpu.kit.edu", "1g.5gb"),
        ("m7", "1g.5gb"),
        ("n2.gpu.kit.edu", "2g.10gb"),
        ("n2.cpu.kit.edu", "3g.20gb"),
        ("m10.cpu.kit.edu", ""),
        ("xn1.kit.edu", ""),
    ],
)
def test_the_first_layout_that_names_a_node_applies(tmp_path: Path, node: str, layout: str) -> None:
    done = run_on(tmp_path, mig.script("topas", LAYOUTS), node)
    assert done.returncode == (0 if layout else 1), done.stderr
    assert {line.split()[-2] for line in done.stdout.splitlines() if "-cgi" in line} == (
        {layout} - {""}
    )
    assert (
        f"no entry for this host ({node.partition('.')[0]} {node}): name it" in done.stderr
    ) is (not layout)
    assert layout or "under `nodes` in `mig`" in done.stderr


NAMES = {
    "A100-40": ("NVIDIA A100-SXM4-40GB", "A100-PCIE-40GB"),
    "A100-80": ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
    "H100-80": ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"),
    "H100-94": ("NVIDIA H100", "NVIDIA H100 NVL"),
    "H100-96": ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "NVIDIA H20"),
    "H200-141": ("NVIDIA H200", "NVIDIA H200 NVL"),
    "A30-24": ("NVIDIA A30",),
    "": ("NVIDIA GH200 144G HBM3e", "NVIDIA A100-SXM-64GB", "NVIDIA A3000", "NVIDIA L40S"),
}


@pytest.mark.parametrize("model", mig.PROFILES)
def test_the_script_divides_the_gpus_with_a_name_of_the_model_only(
    tmp_path: Path, model: str
) -> None:
    """Each model has a name pattern, and it matches the names of no other model."""
    assert NAMES.keys() - {""} == mig.PROFILES.keys() == mig.GPU_NAMES.keys()
    listed = [(name, of) for of, names in NAMES.items() for name in names]
    gpus = "".join(f"{at}, {name}\\n" for at, (name, _) in enumerate(listed))
    rendered = mig.script("topas", [(model, (next(iter(mig.PROFILES[model])),), ("*",))])
    done = run_on(tmp_path, rendered, "n1", gpus)
    assert done.returncode == 0, done.stderr
    divided = [line.split()[2] for line in done.stdout.splitlines() if "-cgi" in line]
    assert divided == [str(at) for at, (_, of) in enumerate(listed) if of == model]


def test_a_node_without_a_gpu_of_the_model_is_an_error(tmp_path: Path) -> None:
    done = run_on(tmp_path, mig.script("topas", [("A100-80", ("3g.40gb",), ("*",))]), "n1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU named A100.*80GB (A100-80): correct `gpu_model` in `mig`." in done.stderr


def test_the_rendered_script_divides_the_gpus_of_the_model(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "topas.yaml"
    path.write_text(SITE.replace("MODEL", "A100-40").replace("LAYOUT", "[1g.5gb, 3g.20gb]"))
    ran = cli("render", "mig", "--site", "topas", "-c", path)
    assert ran.code == Exit.OK and "Nothing may run" in ran.out and "9 % slower" in ran.out
    assert "`check --live` cannot at a site of adapter local" in ran.err
    done = run_on(tmp_path, ran.out, "n1.gpu.kit.edu")
    assert done.returncode == 0, done.stderr
    each = ["-i {} -mig 1", "mig -i {} -dci", "mig -i {} -dgi", "mig -i {} -cgi 3g.20gb,1g.5gb -C"]
    assert done.stdout.splitlines() == [line.format(gpu) for gpu in (0, 2) for line in each] + [
        "-L"
    ]
    path.write_text(SITE.replace("mig: [{gpu_model: MODEL, layout: LAYOUT}]\n", ""))
    ran = cli("render", "mig", "--site", "topas", "-c", path)
    assert (ran.code, ran.out) == (Exit.UNMET, "") and "site topas has no `mig`" in ran.err


def node(name: str, *sizes_mib: int) -> classad2.ClassAd:
    """A slot with MIG instances of these sizes."""
    ad = pslot(name, gpu=A100, gpus=len(sizes_mib))
    for at, size_mib in enumerate(sizes_mib):
        ad[f"GPUs_GPU_{at:08x}"] = classad2.ClassAd(
            {"Id": f"MIG-{at:08x}", "GlobalMemoryMb": size_mib}
        )
    return ad


def test_nodes_with_other_instances_than_promised_are_gaps() -> None:
    policy = SitePolicy("topas", mig=(MigLayout("A100-40", BALANCED, ("mig-*",)),))
    good = (20086, 9856, 4864, 4864)
    ads = [
        node("mig-good", *good, *good),
        node("mig-short", *good[:3]),
        node("mig-other", 20086, 20086, 4864, 4864),
        pslot("mig-off", gpus=2),
        pslot("whole", gpus=2),
        pslot("mig-cpu", gpus=0),
    ]
    found = {gap.node: gap.message for gap in mig_gaps(machines_of(ads, 0), policy)}
    assert found.keys() == {"mig-short", "mig-other", "mig-off"}
    assert found["mig-off"].startswith(
        "2 GPUs, and no MIG instance in its slot ads; `mig` promises 3g.20gb, 2g.10gb, 2 of"
    )
    assert "MIG instances of 4864 MiB, 4864 MiB, 20086 MiB, 20086 MiB" in found["mig-other"]


@pytest.mark.parametrize(
    ("pattern", "gaps"), [("n1", 1), ("n1.kit.edu", 1), ("*.kit.edu", 1), ("n", 0)]
)
def test_a_pattern_for_the_short_or_the_full_name_names_the_node(pattern: str, gaps: int) -> None:
    policy = SitePolicy("topas", mig=(MigLayout("A100-40", BALANCED, (pattern,)),))
    assert len(list(mig_gaps(machines_of([pslot("n1.kit.edu", gpus=2)], 0), policy))) == gaps


def test_the_note_promises_an_audit_where_the_adapter_has_one(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "topas.yaml"
    path.write_text((ROOT / "site_configs" / "topas.yaml").read_text() + MIG)
    ran = cli("render", "mig", "--site", "topas", "-c", path)
    assert (
        ran.code == Exit.OK
        and "then `provisioner check --live` reports nodes that differ" in ran.err
    )


@pytest.mark.parametrize(("vram", "code"), [("20000", 0), ("40960", 1)])
def test_an_instance_smaller_than_promised_is_a_failed_check(
    tmp_path: Path, vram: str, code: int
) -> None:
    found = (
        'DetectedGPUs="MIG-a/0/0, MIG-a/1/0"\\nMIG_a_0_0=[ GlobalMemoryMb=9856; ]\\nMIG_a_1_0=[ '
        "GlobalMemoryMb=9856; ]"
    )
    discovery = tmp_path / "discovery"
    discovery.write_text(f"#!/bin/sh\nprintf '{found}\\n'\n")
    discovery.chmod(0o755)
    env = {
        "DRONE_DISCOVERY": str(discovery),
        "DRONE_DISCOVERY_OPTIONS": "",
        "DRONE_SHARES": "2",
        "DRONE_VRAM_MIB": vram,
    }
    done = subprocess.run(
        ["sh", "-c", script("gpu_discovery.sh").decode()],
        env={"PATH": os.environ["PATH"], "DRONE_SHARING": "mig", **env},
        text=True,
        capture_output=True,
        timeout=60,
    )
    said = (
        "HTCondor finds 2 shares of GPUs"
        if code == 0
        else "a MIG instance has 9856 MiB, and the drone type promises 20480"
    )
    assert (done.returncode, done.stdout.strip()) == (code, said)
