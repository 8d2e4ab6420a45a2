"""What a changed configuration changes in a running controller, and what it must not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from provisioner.config import ConfigChange, OverlayConfig, Settings, SiteConfig, changes
from provisioner.config.models import ServiceSection, StoreSection
from provisioner.model import DroneType, Policy, SitePolicy


class Options(BaseModel):
    speed: int = 1
    root: str = Field(default="drones", json_schema_extra={"places_drones": True})


def site(name: str, **changed: object) -> SiteConfig:
    gpu = DroneType(site=name, name="gpu", gpu_milli=1000, cpus=1, memory_mib=1024, disk_mib=1024)
    spec = SiteConfig(name, "local", Options(), (gpu,), SitePolicy(site=name), Path(f"{name}.yaml"))
    return replace(spec, **changed)  # type: ignore[arg-type]


def settings(*sites: SiteConfig, **changed: object) -> Settings:
    made = Settings(
        path=Path("provisioner.yaml"),
        controller="kit",
        store=StoreSection(path=Path("record.db")),
        overlay=OverlayConfig("embedded", Options()),
        sites=sites,
        policy=Policy(
            sites={spec.name: spec.policy for spec in sites}, interval_s=15, active_interval_s=2
        ),
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def test_policy_and_limits_change_in_place() -> None:
    old = settings(site("a"))
    new = settings(site("a", policy=SitePolicy(site="a", max_drones=20)))
    new = replace(new, policy=replace(new.policy, idle_timeout_s=300.0, interval_s=30))
    assert changes(old, new, {"a": 3}) == ConfigChange(
        notes=(
            "policy.interval_s: 15 -> 30",
            "policy.idle_timeout_s: 600.0 -> 300.0",
            "site a.max_drones: 10 -> 20",
        )
    )


def test_services_change_in_place() -> None:
    cms = ServiceSection.model_validate({"name": "cms"})
    change = changes(settings(), settings(services=(cms,)), {})
    assert change == ConfigChange(notes=(f"services: () -> {(cms,)}",))


def test_sites_come_and_empty_ones_go() -> None:
    change = changes(settings(site("a"), site("b")), settings(site("b"), site("c")), {"b": 5})
    assert change == ConfigChange(notes=("site c: added", "site a: removed"))


def test_changed_options_and_types_build_the_site_anew() -> None:
    big = DroneType(site="b", name="big", gpu_milli=8000, cpus=1, memory_mib=1024, disk_mib=1024)
    old = settings(site("a"), site("b"))
    new = settings(site("a", options=Options(speed=2)), site("b", types=(big,)))
    change = changes(old, new, {"a": 2, "b": 2})
    assert (change.rebuilt, change.refused) == (("a", "b"), ())
    assert change.notes == (
        "site a: options.speed: 1 -> 2",
        "site b: type big: added",
        "site b: type gpu: removed; its drones are drained",
    )


def test_what_holds_from_start_to_end_is_refused_all_at_once() -> None:
    old = settings(site("a"))
    new = settings(
        site("a"),
        controller="kat",
        store=StoreSection(path=Path("other.db"), keep="1min"),
        overlay=OverlayConfig("htcondor", Options()),
    )
    told = [line.partition(":")[0] for line in changes(old, new, {}).refused]
    assert told == ["controller", "store.path", "store", "overlay"]


@pytest.mark.parametrize(
    ("after", "refused"),
    [
        ((), "site a: removed, but 2 live drones would be left without a controller"),
        ((site("a", options=Options(root="elsewhere")),), "site a: options.root places its drones"),
        (
            (site("a", adapter="slurm"),),
            "adapter local -> slurm, but 2 live drones of the old one would be lost",
        ),
    ],
)
def test_what_would_lose_drones_waits_until_there_are_none(
    after: tuple[SiteConfig, ...], refused: str
) -> None:
    old, new = settings(site("a")), settings(*after)
    assert changes(old, new, {}).refused == ()
    assert refused in changes(old, new, {"a": 2}).refused[0]
