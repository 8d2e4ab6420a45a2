"""Checks before the first drone of a local site: room for its type, a writable directory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.local import resources as host
from adapters.local.config import LocalSiteConfig
from adapters.local.site import LocalSite
from provisioner.config import check, load
from provisioner.model import DroneType, SitePolicy

LARGE = DroneType("local", "large", 0, 64, 1024, 100)
SMALL = DroneType("local", "small", 0, 1, 1024, 100)


def site(root: Path, *types: DroneType, **more: object) -> LocalSite:
    config = LocalSiteConfig.model_validate(
        {"root": root, "gpus": [], "cpus": 2, "memory": "4 GiB"} | more
    )
    return LocalSite("local", config, types, "kit")


async def test_a_type_that_can_never_fit_is_told_with_its_dimension(tmp_path: Path) -> None:
    """8 CPUs on a host of 2: "the site shows no free place", for ever, and nothing said why."""
    gpu = DroneType("local", "a100", 1000, 1, 1024, 100, vram_mib=40960)
    async with site(tmp_path, SMALL, LARGE, gpu, disk="1000 MiB") as here:
        view = await here.poll()
    assert view.free == {"small": 2, "large": 0, "a100": 0}
    assert view.unfit == {
        "large": "CPUs 64 > 2",
        "a100": "GPUs: 1 with 40960 MiB wanted, this host has none",
    }
    assert view.lacks == {}


async def test_a_disk_that_grows_is_seen_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path, replace(SMALL, disk_mib=1024)) as here:
        monkeypatch.setattr("adapters.local.site.disk_mib", lambda root: 3)
        await here.poll()
        assert (await here.poll()).unfit == {"small": "disk (MiB) 1024 > 3"}
        monkeypatch.setattr("adapters.local.site.disk_mib", lambda root: 4096)
        view = await here.poll()
    assert view.free == {"small": 2} and view.unfit == {}


async def test_a_directory_that_cannot_be_written_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(tmp_path / "drones", SMALL, disk="1000 MiB") as here:
        assert await here.audit(SitePolicy("local")) == []
        (tmp_path / "drones").rmdir()
        (gap,) = await here.audit(SitePolicy("local"))
    assert gap.dimension == "directory" and "cannot be written" in gap.message


def test_check_warns_of_a_type_that_this_host_can_never_hold(
    tmp_path: Path,
) -> None:
    (tmp_path / "provisioner.yaml").write_text(
        "controller: kit\nstore: {path: p.db}\noverlay: {adapter: embedded, options: {path: q.db}}\n"
        "sites: [local.yaml]\npolicy: {idle_timeout: 10min, max_drones: 4}\n"
    )
    (tmp_path / "local.yaml").write_text(
        "site: local\nadapter: local\nlimits: {max_drones: 1}\ntypes:\n"
        "  small: {gpus: 0, cpus: 1, memory: 1 GiB, disk: 1 MiB}\n"
        "  large: {gpus: 0, cpus: 8, memory: 1 GiB, disk: 1 MiB}\n"
        "options: {root: not/made/yet, gpus: [], cpus: 2, memory: 4 GiB}\n"
    )
    checked = check(tmp_path / "provisioner.yaml")
    assert checked.problems == []
    (told,) = checked.warnings
    assert told.message == (
        "warning: `large` can never start on this host: CPUs 8 > 2. Make it smaller"
    )
    assert told.line == 6
    assert len(load(tmp_path / "provisioner.yaml").types) == 2


def test_what_nvidia_smi_would_list_is_not_judged_without_it(tmp_path: Path) -> None:
    config = LocalSiteConfig.model_validate({"root": tmp_path, "cpus": 2, "memory": "4 GiB"})
    assert list(config.types_too_large([DroneType("local", "a100", 8000, 2, 1024, 0)])) == []
    assert host.disk_mib(tmp_path) > 0 and os.path.isdir(tmp_path)
