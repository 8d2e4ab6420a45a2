"""Printed configuration for blocking. Its effect: tests/live/test_slurm_blocking.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from adapters.slurm.blocking import ReserveLimits, render_blocking, reserve_limits
from provisioner.model import Reserve, SitePolicy
from tests.slurm.test_capacity import A100, FULL, H100, config

SHARE = Reserve(cpus=8, memory_mib=20480)
POLICY = SitePolicy(site="horeka", grace_s=60, blocking=(SHARE,))
ACCELERATED: Mapping[str, Any] = {
    "nodes": "hkn[0801-0967]",
    "cores_per_socket": 38,
    "threads_per_core": 2,
    "memory": "512000 MiB",
    "gpus": 4,
    "gres": "gpu:a100",
}


def printed(policy: SitePolicy = POLICY, *hardware: Mapping[str, Any], **more: Any) -> str:
    text = render_blocking(
        policy, (A100, FULL, H100), config(hardware=list(hardware or (ACCELERATED,)), **more)
    )
    assert all(len(line) <= 120 for line in text.splitlines() if line.startswith("#"))
    return text


def lines(text: str) -> list[str]:
    """What Slurm reads."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def prose(text: str) -> str:
    return " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [
        (SHARE, ReserveLimits(4, 3584)),
        # half a core cannot be kept: rounded up
        (Reserve(cpus=7, memory_mib=20480), ReserveLimits(4, 3584)),
        (Reserve(memory_mib=20480), ReserveLimits(0, 2829)),
        # no CPU is left that could take memory
        (Reserve(cpus=38, memory_mib=20480), ReserveLimits(19, 0)),
        (Reserve(cpus=8, memory_mib=128_000), None),
    ],
)
def test_the_numbers(reserve: Reserve, expected: ReserveLimits | None) -> None:
    assert (
        reserve_limits(reserve, cpus=152, threads_per_core=2, memory_mib=512_000, gpus=4)
        == expected
    )


NOT_ALL = replace(POLICY, blocking=(Reserve(nodes=("hkn08*",), cpus=8),))
TOO_LARGE = replace(POLICY, blocking=(Reserve(cpus=40, memory_mib=20480),))


@pytest.mark.parametrize(
    ("policy", "hardware", "told"),
    [
        (NOT_ALL, [ACCELERATED], "!! hkn[0801-0967]: `blocking` has not one entry for all of them"),
        (
            TOO_LARGE,
            [ACCELERATED],
            "cannot keep 40 CPUs, 20480 MiB of memory each of 152 CPUs and 512000 MiB: nothing",
        ),
        (POLICY, [], "write it under `options.hardware`"),
    ],
)
def test_where_nothing_can_be_printed_the_text_says_why(
    policy: SitePolicy, hardware: list[Mapping[str, Any]], told: str
) -> None:
    text = render_blocking(policy, (A100,), config(hardware=hardware))
    assert told in prose(text)
    assert lines(text) == []


def test_the_owners_priority_is_by_partitions() -> None:
    owned = {"owner": {"partitions": ["owners"]}, "partition": "backfill"}
    text = printed(POLICY, **owned)
    assert lines(text)[-3:] == [
        "PreemptType=preempt/partition_prio",
        "PreemptMode=CANCEL",
        "PreemptParameters=send_user_signal",
    ]
    said = prose(text)
    assert "of owners (the owner): PriorityTier=10 PreemptMode=OFF" in said
    assert (
        "of backfill, accelerated-h100 (drones): PriorityTier=2 PreemptMode=CANCEL GraceTime=60"
        in said
    )
