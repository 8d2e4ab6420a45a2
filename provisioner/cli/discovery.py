"""Facts for a first configuration that tools and files of this host know. What cannot be read is left out."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import yaml

from provisioner.gpu_models import canonical

Values = Mapping[str, str]
DISCOVERY_TIMEOUT_S = 20.0
SHARE = 0.9
"""Part of the memory and disk of a node that its drones get."""
NOT_READABLE = (OSError, ValueError, LookupError, TypeError, yaml.YAMLError)


def printed(*command: str) -> str:
    """Return what a tool prints; nothing if it is missing or fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=DISCOVERY_TIMEOUT_S, check=True
        ).stdout.strip()
    return ""


def of_host() -> Values:
    """Return the pool and the cluster that this host belongs to, and what clients of clusters and clouds would use."""
    found = {}
    if kill_wait := re.search(r"KillWait\s*= (\d+)", printed("scontrol", "show", "config")):
        found["grace"] = f"{kill_wait[1]}s"
    if collector := re.match(r"[^,\s]+", printed("condor_config_val", "COLLECTOR_HOST")):
        found["pool"] = collector[0] if ":" in collector[0] else f"{collector[0]}:9618"
    kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube/config")
    with suppress(*NOT_READABLE):
        tree = yaml.safe_load(kubeconfig.read_text())
        found["kubeconfig"] = str(kubeconfig)
        contexts = {each["name"]: each["context"] for each in tree["contexts"]}
        found["namespace"] = contexts[tree["current-context"]]["namespace"]
    clouds = (Path("clouds.yaml"), Path.home() / ".config/openstack/clouds.yaml")
    for path in (*clouds, Path("/etc/openstack/clouds.yaml")):
        with suppress(*NOT_READABLE):
            found["cloud"] = next(iter(yaml.safe_load(path.read_text())["clouds"]))
            found["clouds_file"] = str(path.absolute())
            break
    return found


def implied(values: Values) -> Values:
    """Return what follows from other values: the issuer of the token, the name of the key, facts on a GPU model."""
    found = {}
    with suppress(*NOT_READABLE):
        claims = Path(values["token"]).read_text().split(".")[1]
        found["trust_domain"] = str(json.loads(base64.urlsafe_b64decode(f"{claims}=="))["iss"])
    if key := values.get("key"):
        found["key_id"] = Path(key).stem
    tool = Path(values.get("condor_prefix", ""), "usr/bin/condor_drain")
    if tool.is_absolute() and tool.exists():
        found["drain_tool"] = str(tool)
    name = canonical(values.get("gpu_model", ""))
    table = files("provisioner.cli") / "init_files" / "gpus.txt"
    for begin, vram_gib, capability in map(str.split, table.read_text().splitlines()):
        if name.startswith(begin):
            return {**found, "vram": f"{vram_gib} GiB", "capability": capability}
    return found


def host_types(values: Values) -> Iterator[Values]:
    """Yield the GPU models of this host as nvidia-smi lists them; without GPUs, a type of CPUs."""
    query = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")
    models = Counter(printed("nvidia-smi", *query).splitlines())
    cuda = re.search(r"CUDA (?:UMD )?Version\s*: (\d+\.\d+)", printed("nvidia-smi"))
    driver = {"driver": cuda[1]} if cuda else {}
    root = Path(values["root"])
    while not root.exists():
        root = root.parent
    gpus = max(1, models.total())
    disk_gib = shutil.disk_usage(root).free * SHARE / gpus / 2**30
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    room = {
        **_share(memory_mib, len(os.sched_getaffinity(0)), gpus),
        "disk": f"{max(1, int(disk_gib))} GiB",
    }
    for line in models:
        model, vram_mib, capability = line.split(", ")
        gpu = {"gpu_model": model, "vram": f"{vram_mib} MiB", "capability": capability}
        yield {"name": _name(model), "gpus": "1", **gpu, **driver, **room}
    if not models:
        yield {"name": "cpu", "gpus": "0", **room}


def slurm_types(values: Values) -> Iterator[Values]:
    """Yield the GPUs of each partition that sinfo lists."""
    sinfo = str(Path(values.get("bin", ""), "sinfo"))
    for line in printed(sinfo, "-h", "-e", "-o", "%R|%G|%c|%m").splitlines():
        partition, gres, cpus, memory_mib = line.split("|")
        for kind, gpus in re.findall(r"\bgpu(:[A-Za-z][\w.-]*)?:(\d+)", gres):
            model = {"gpu_model": kind[1:].upper()} if kind else {}
            room = _share(int(memory_mib), int(cpus), int(gpus))
            place = {"gres": f"gpu{kind}", "partition": partition}
            yield {"name": _name(kind[1:] or "gpu"), **model, **place, **room}


def kubernetes_types(values: Values) -> Iterator[Values]:
    """Yield the GPU products of the nodes that kubectl lists."""
    label = r"{.metadata.labels.nvidia\.com/gpu\.product}"
    listed = ("get", "nodes", "-o", "jsonpath={range .items[*]}" + label + '{"\\n"}{end}')
    for product in printed("kubectl", "--kubeconfig", values["kubeconfig"], *listed).split():
        yield {"name": _name(product), "product": product, "gpu_model": product}


TYPES: Mapping[str, Callable[[Values], Iterator[Values]]] = {
    "local": host_types,
    "slurm": slurm_types,
    "kubernetes": kubernetes_types,
}


def drone_types(kind: str, values: Values) -> list[Values]:
    """Return the drone types that a site could have, the first of each name; without any, an unknown one."""
    found: dict[str, Values] = {}
    for each in TYPES[kind](values) if kind in TYPES else ():
        found.setdefault(each["name"], each)
    return [*found.values()] or [{"name": "gpu"}]


def _share(memory_mib: float, cpus: int, gpus: int) -> Values:
    """Return the CPUs and the memory of a node for each of its GPUs."""
    share_mib = int(memory_mib * SHARE / gpus)
    return {"cpus": str(max(1, cpus // gpus)), "memory": f"{share_mib} MiB"}


def _name(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", canonical(model)).strip("-")
