"""Choice of the host that tools run on: this one, or a login node."""

from __future__ import annotations

from adapters.shared.commands.local import LocalRunner, own_environment
from adapters.shared.commands.runner import Runner
from adapters.shared.commands.settings import SshSettings
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind


def runner_for(ssh: SshSettings | None, *dropped: str) -> Runner:
    """Return a runner over ``ssh``, or here without the variables that begin with one of ``dropped``."""
    if ssh is None:
        return LocalRunner(own_environment(*dropped))
    try:
        from adapters.shared.commands.ssh import SshRunner
    except ImportError as error:
        if error.name != "asyncssh":
            raise
        raise UnavailableError(
            "tools over ssh need the Python package asyncssh: pip install 'gpu-drone-provisioner[ssh]'",
            FaultKind.CONFIG,
        ) from None
    return SshRunner(ssh)
