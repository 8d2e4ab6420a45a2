"""Choice of the host that tools run on: this one, or a login node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from adapters.shared.commands.local import LocalRunner, own_environment
from adapters.shared.commands.runner import Runner
from adapters.shared.commands.settings import SshSettings
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind


def runner_for(ssh: SshSettings | None, *dropped: str) -> Runner:
    """Return a runner over ``ssh``, or here without the variables that begin with one of ``dropped``."""
    if ssh is None:
        return LocalRunner(own_environment(*dropped))
    with optional_package("asyncssh", "ssh", "tools over ssh need"):
        from adapters.shared.commands.ssh import SshRunner
    return SshRunner(ssh)


@contextmanager
def optional_package(package: str, extra: str, needed_by: str) -> Iterator[None]:
    """Import what uses an optional package. UnavailableError, with the remedy, if it is not installed."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        message = f"{needed_by} the Python package {package}: pip install 'gpu-drone-provisioner[{extra}]'"
        raise UnavailableError(message, FaultKind.CONFIG) from None
