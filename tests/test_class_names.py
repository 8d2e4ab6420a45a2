"""Names of job classes: whose it is, what one job asks for, and a short id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from provisioner.descriptions import ClassNames
from provisioner.model import JobClass, OverlayView

GIB = 1024
A, B, C = "3f2a91c07be4d856", "3f2b0d1e94ab3268", "77b1c2d3e4f50617"
PLAIN = JobClass(A, 1000, 2, 4 * GIB, vram_mib=40 * GIB, owner="alice")


def names(*classes: JobClass, others: Sequence[str] = ()) -> list[str]:
    found = ClassNames(OverlayView(0.0, classes), others=others)
    return [found.of(job.id) for job in classes]


@pytest.mark.parametrize(
    ("asks", "name"),
    [
        ({}, "alice: 1 GPU, 40 GiB VRAM (3f2a)"),
        ({"gpu_milli": 8000, "vram_mib": 0}, "alice: 8 GPUs (3f2a)"),
        ({"gpu_milli": 200, "vram_mib": 0}, "alice: 0.2 GPU (3f2a)"),
        ({"gpu_milli": 0, "vram_mib": 0}, "alice: 2 CPUs, 4 GiB RAM (3f2a)"),
        ({"cpus": 17}, "alice: 1 GPU, 40 GiB VRAM, 17 CPUs (3f2a)"),
        ({"cpus": 17, "gpu_milli": 2000, "vram_mib": 0}, "alice: 2 GPUs (3f2a)"),
        ({"memory_mib": 500 * GIB}, "alice: 1 GPU, 40 GiB VRAM, 500 GiB RAM (3f2a)"),
        ({"owner": ""}, "1 GPU, 40 GiB VRAM (3f2a)"),
        ({"owner": "a\x1b[31m"}, "a\ufffd[31m: 1 GPU, 40 GiB VRAM (3f2a)"),
        ({"id": "headroom:day"}, "alice: 1 GPU, 40 GiB VRAM (headroom:day)"),
    ],
    ids=str,
)
def test_a_name_has_the_owner_the_gpus_and_what_is_unusual(
    asks: dict[str, object], name: str
) -> None:
    assert names(replace(PLAIN, **asks)) == [name]


def test_a_name_has_what_distinguishes_the_classes_of_one_owner_and_no_more() -> None:
    others = (replace(PLAIN, id=B, cpus=4), replace(PLAIN, id=C, cpus=4, walltime_s=7200.0))
    assert names(PLAIN, *others, replace(PLAIN, id="99" * 8, owner="bob")) == [
        "alice: 1 GPU, 40 GiB VRAM, 2 CPUs (3f2a)",
        "alice: 1 GPU, 40 GiB VRAM, 4 CPUs (3f2b)",
        "alice: 1 GPU, 40 GiB VRAM, 4 CPUs, up to 2h (77b1)",
        "bob: 1 GPU, 40 GiB VRAM (9999)",
    ]


def test_classes_that_differ_in_requirements_alone_have_another_id() -> None:
    assert names(PLAIN, replace(PLAIN, id=B)) == [
        "alice: 1 GPU, 40 GiB VRAM (3f2a)",
        "alice: 1 GPU, 40 GiB VRAM (3f2b)",
    ]


def test_a_short_id_is_unique_among_all_known_classes() -> None:
    assert names(PLAIN, others=[A[:6] + "0" * 10]) == ["alice: 1 GPU, 40 GiB VRAM (3f2a91c)"]
    unknown = ClassNames(OverlayView(0.0, (PLAIN,)))
    assert unknown.of(A[:7] + "f" * 9) == "3f2a91cf", "of a class that is gone only the id is known"
    assert unknown.of(B) == "3f2b" and unknown.of("") == ""


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (f"class:{A}", "alice: 1 GPU, 40 GiB VRAM (3f2a)"),
        ("class:headroom:day", "headroom:day"),
        (f"topas/a100#{A}", "topas/a100#3f2a"),
        *((same, same) for same in ("topas/a100", "site:topas", "topas@n1", "user:bob", "all")),
    ],
)
def test_keys_are_shown_with_names(key: str, shown: str) -> None:
    assert ClassNames(OverlayView(0.0, (PLAIN,))).in_key(key) == shown
