"""Commands on this host, in their own session and killed with all that they started; and the choice of a host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import cast

from adapters.shared import optional_packages
from adapters.shared.commands.runner import (
    MAX_OUTPUT_BYTES,
    Finished,
    Runner,
    checked,
    judged,
    no_time,
    program,
    too_much,
)
from adapters.shared.commands.settings import SshSettings
from provisioner.interfaces import AlwaysOpen, UnavailableError
from provisioner.model import FaultKind

_WHERE = "this host"
_DYING_S = 5.0


def runner_for(ssh: SshSettings | None, *dropped: str) -> Runner:
    """Return a runner over ``ssh``, or here without the variables that begin with one of ``dropped``."""
    if ssh is None:
        return LocalRunner(own_environment(*dropped))
    with optional_packages("ssh", "tools over ssh need", "asyncssh"):
        from adapters.shared.commands.ssh import SshRunner
    return SshRunner(ssh)


def own_environment(*dropped: str) -> dict[str, str]:
    """Return the controller's environment without variables that begin with one of ``dropped``, in any case."""
    starts = tuple(each.upper() for each in dropped)
    return {name: text for name, text in os.environ.items() if not name.upper().startswith(starts)}


class LocalRunner(AlwaysOpen):
    """Runs commands as ourselves with the environment ``env``."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = dict(env)

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        name = program(checked(argv))
        try:
            transport, answer = await asyncio.get_running_loop().subprocess_exec(
                _Answer, *argv, env=self._env, start_new_session=True
            )
        except OSError as error:
            raise UnavailableError(
                f"{_WHERE}: `{name}` cannot be run: {error.strerror}", FaultKind.CONFIG
            ) from None
        try:
            async with asyncio.timeout(deadline_s):
                writer = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
                writer.write(stdin)
                writer.close()
                await answer.over.wait()
        except TimeoutError:
            raise no_time(_WHERE, name, deadline_s) from None
        finally:
            if not answer.complete:
                # the whole process group: what the command started has its pipes and may outlive it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
                transport.close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DYING_S):
                        await answer.reaped.wait()
            transport.close()
        if answer.too_long:
            raise too_much(_WHERE, name)
        code = transport.get_returncode()
        assert code is not None
        return judged(_WHERE, name, code, bytes(answer.out), bytes(answer.err))


class _Answer(asyncio.SubprocessProtocol):
    """Output of a process, and whether it and its pipes are closed."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.over = asyncio.Event()
        self.reaped = asyncio.Event()
        self.complete = self.too_long = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        (self.out if fd == 1 else self.err).extend(data)
        if len(self.out) + len(self.err) > MAX_OUTPUT_BYTES:
            self.too_long = True
            self.over.set()

    def process_exited(self) -> None:
        self.reaped.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.complete = not self.too_long
        self.over.set()
