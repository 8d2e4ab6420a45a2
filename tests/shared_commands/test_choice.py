"""Tools run here or over ssh, and the package for ssh is asked for only by who uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from adapters.shared.commands.choice import runner_for
from adapters.shared.commands.local import LocalRunner
from adapters.shared.commands.settings import SshSettings
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind

SSH = SshSettings.model_validate({"host": "login.example.org", "user": "drones", "key": "/nowhere/id"})


def test_without_asyncssh_ssh_is_a_mistake_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    monkeypatch.delitem(sys.modules, "adapters.shared.commands.ssh")
    monkeypatch.delitem(sys.modules, "adapters.shared.commands.ssh_login", raising=False)
    assert isinstance(runner_for(None), LocalRunner)
    with pytest.raises(UnavailableError, match=r"gpu-drone-provisioner\[ssh\]") as caught:
        runner_for(SSH)
    assert caught.value.kind is FaultKind.CONFIG


def test_an_adapter_can_be_loaded_without_asyncssh() -> None:
    program = "import sys, adapters.htcondor.site.client; sys.exit('asyncssh' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
