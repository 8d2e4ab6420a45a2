"""Fixtures: OpenSSH servers of each test's own. They are real: PROVISIONER_NO_LIVE=1 leaves them out, not under CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.shared_commands.sshd import Sshd, fetched, running_sshd


@pytest.fixture(scope="session")
def openssh() -> Path:
    if os.environ.get("PROVISIONER_NO_LIVE") and not os.environ.get("CI"):
        pytest.skip("PROVISIONER_NO_LIVE is set")
    return fetched()


@pytest.fixture
def new_sshd(openssh: Path) -> Iterator[Callable[..., Sshd]]:
    """Start a server: ``new_sshd(config, key_options)``."""
    with ExitStack() as stack:
        yield lambda config="", key_options="": stack.enter_context(
            running_sshd(openssh, config, key_options)
        )


@pytest.fixture(scope="module")
def sshd(openssh: Path) -> Iterator[Sshd]:
    """One server for the tests of a module that leave it as it is."""
    with running_sshd(openssh) as server:
        yield server
