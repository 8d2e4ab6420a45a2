"""Compatible drone types of a shape, their order, and the unmet requirement that is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import DroneType, Policy, UnmetRequirement
from provisioner.planner.matching import CompatibleTypes, compatibility_cache, unmet_requirement
from tests.planner.scenes import A100, QUAD, SMALL, V100, jobs


def compatible(*types: DroneType, policy: Policy | None = None, **job: object) -> CompatibleTypes:
    return compatibility_cache(types, policy or Policy()).table([jobs(**job)])[SMALL.id]


@pytest.mark.parametrize(
    ("job", "unmet"),
    [
        ({"capability": 90}, UnmetRequirement("capability", "9.0", "8.0")),
        ({"capability": 80}, None),
        ({"vram_mib": 50_000}, UnmetRequirement("vram", "50000 MiB", "40960 MiB")),
        ({"cpus": 9}, UnmetRequirement("cpus", "9", "8")),
    ],
)
def test_the_first_unmet_requirement_has_both_numbers(job: dict[str, object], unmet: UnmetRequirement | None) -> None:
    assert unmet_requirement(jobs(**job), A100) == unmet


def test_types_are_ranked_by_price_per_job_to_the_last_fraction() -> None:
    dear, cheap = replace(V100, name="a", price=0.0019), replace(V100, name="b", price=0.0011)
    assert compatible(dear, cheap).cheapest == (cheap.key, dear.key)
    # A drone of four GPUs at 2.0 an hour and GPU costs as much per job as one of one GPU.
    assert compatible(QUAD, replace(A100, price=1.99)).cheapest == (A100.key, QUAD.key)


def test_the_nearest_type_is_reported_only_if_no_type_fits() -> None:
    assert compatible(A100, V100, vram_mib=35_000).nearest is None
    none = compatible(A100, V100, vram_mib=50_000)
    assert none.kinds == () and none.nearest is not None and none.nearest[0] == A100.key
    assert compatible(A100, vram_mib=50_000, invalid="not a number").nearest is None
    refuses = {A100.key: UnmetRequirement("requirements", "x", "y")}
    assert compatible(A100, vram_mib=50_000, refuses=refuses).nearest is None
