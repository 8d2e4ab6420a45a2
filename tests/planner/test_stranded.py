"""Free GPUs beside which too little is left: what is short, on how many nodes, and how much is left at most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import DroneType, Node
from provisioner.planner.capacity import stranded_gpus
from provisioner.reasons import GpusStranded
from tests.planner.scenes import node

KIND = DroneType("topas", "a100", 2000, 8, 20480, 1024)
ENOUGH = {"free_gpus": 2, "free_cpus": 8, "free_gib": 20}


def of(name: str, disk: int = 0, free_disk: int = 0, **free: int) -> Node:
    return replace(node(name, 8, **ENOUGH | free), disk_mib=disk, free_disk_mib=free_disk)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "short"),
    [
        ([], None),
        ([of("n1")], None),
        ([of("n1", free_cpus=7)], ("cpus", 8, 1, 2.0, 7)),
        ([of("n1", free_gib=19)], ("memory", 20480, 1, 2.0, 19 * 1024)),
        ([of("n1", disk=9999, free_disk=1024)], None),
        ([of("n1", disk=9999, free_disk=1023)], ("disk", 1024, 1, 2.0, 1023)),
        ([of("n1", free_cpus=7), of("n2")], None),
        ([of("n1", free_gpus=1), of("n2", free_cpus=7)], ("cpus", 8, 1, 2.0, 7)),
        ([of("n1", free_gpus=1, free_cpus=0)], None),
        ([of("n1", free_cpus=3), of("n2", free_cpus=5, free_gpus=5)], ("cpus", 8, 2, 7.0, 5)),
        (
            [of("n1", free_cpus=3), of("n2", free_cpus=5), of("n3", free_gib=1, free_gpus=5)],
            ("memory", 20480, 1, 5.0, 1024),
        ),
        ([replace(of("n1", free_cpus=3), types=("v100",)), of("n2", free_gib=1)], ("memory", 20480, 1, 2.0, 1024)),
    ],
)
def test_what_is_short_on_most_free_gpus_is_told(
    nodes: list[Node], short: tuple[str, int, int, float, int] | None
) -> None:
    expected = None
    if short is not None:
        dimension, wanted, count, gpus, free = short
        expected = GpusStranded(KIND.key, count, gpus, dimension, wanted, free)
    assert stranded_gpus(KIND, nodes) == expected


def test_a_type_without_gpus_strands_none() -> None:
    assert stranded_gpus(replace(KIND, gpu_milli=0), [of("n1", free_cpus=0)]) is None
