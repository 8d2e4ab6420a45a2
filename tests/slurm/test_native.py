"""The native transport without pyslurm: options and errors. Its records: test_answers.py."""

from __future__ import annotations

import os
from typing import Any

import pytest

from adapters.slurm.native import SlurmNativeClient, check_release, hide_from_jobs
from adapters.slurm.records import SlurmSubmission
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind


def native(**more: Any) -> SlurmNativeClient:
    return SlurmNativeClient(SlurmSiteConfig.model_validate({"transport": "native", **more}), "hk")


def test_variables_of_slurm_are_hidden_from_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JWT", "token")
    try:
        hide_from_jobs()
        assert not [name for name in os.environ if name.startswith("SLURM_")]
    finally:
        os.unsetenv("SLURM_JWT")
        os.unsetenv("SLURM_BITSTR_LEN")


def test_another_release_is_not_tried() -> None:
    check_release("26.5.0", 45)
    with pytest.raises(
        UnavailableError, match=r"pyslurm 25\.11\.2 is for Slurm 25\.11, .* is of 26\.05"
    ) as down:
        check_release("25.11.2", 45)
    assert down.value.kind is FaultKind.CONFIG


async def test_without_pyslurm_the_error_names_the_requirement() -> None:
    async with native() as cluster:
        for question in (
            cluster.own_jobs,
            lambda: cluster.submit(SlurmSubmission("x", b"#!/bin/sh\n")),
        ):
            with pytest.raises(UnavailableError, match="install the extra `slurm-native`") as down:
                await question()
            assert down.value.kind is FaultKind.CONFIG
