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
from provisioner.worker_process import WorkerProcess


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
    with pytest.raises(UnavailableError, match=r"pyslurm 25\.11\.2 is for Slurm 25\.11, .* is of 26\.05") as down:
        check_release("25.11.2", 45)
    assert down.value.kind is FaultKind.CONFIG


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("the child process ended: fatal: Could not establish a configuration source", FaultKind.CONFIG),
        ("no answer within 5 s", FaultKind.DOWN),
    ],
)
async def test_the_end_for_want_of_a_configuration_is_explained(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: FaultKind
) -> None:
    async def call(*_: object, **__: object) -> object:
        raise UnavailableError(said)

    monkeypatch.setattr(WorkerProcess, "call", call)
    async with native() as cluster:
        with pytest.raises(UnavailableError, match=said) as down:
            await cluster.nodes()
    assert down.value.kind is kind


async def test_without_pyslurm_the_error_names_the_requirement() -> None:
    async with native() as cluster:
        for question in (cluster.own_jobs, lambda: cluster.submit(SlurmSubmission("x", b"#!/bin/sh\n"))):
            with pytest.raises(UnavailableError, match=r"pip install 'gpu-drone-provisioner\[slurm-native\]'") as down:
                await question()
            assert down.value.kind is FaultKind.CONFIG
