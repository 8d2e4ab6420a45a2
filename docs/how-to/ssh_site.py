"""A minimal site adapter: drones are processes on another host, started with the ``ssh`` program.

:class:`provisioner.drone_directories.DroneDirectories` keeps a directory for each drone on that
host, and says what the host needs. All that is left is to run its commands there, and to say what
a failure means. Needs OpenSSH here.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from provisioner.config.units import ConfigPath, Duration, PositiveDuration
from provisioner.drone_directories import DroneDirectories
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OptionFinding,
    OutcomeUnknownError,
    UnavailableError,
)
from provisioner.model import DroneType, OrderResult, SiteView, StartOrder, StopOrder


class SshSiteConfig(BaseModel):
    """Options of the site."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(
        pattern=r"^[A-Za-z0-9._:@][A-Za-z0-9._:@-]*$", description="Host, as `ssh` accepts it."
    )
    ssh_config: ConfigPath | None = Field(
        default=None, description="Configuration file of `ssh`: user, port, key."
    )
    root: str = Field(
        default="drones",
        pattern=r"^[A-Za-z0-9._/-]+$",
        description="Directory of the drones there.",
    )
    gpus: int = Field(ge=0, le=64, description="Number of GPUs of the host.", examples=[4])
    deadline: PositiveDuration = Field(default=20.0, description="Longest wait for one command.")
    retain_finished: Duration = Field(
        default=3600.0, description="How long finished drones are listed."
    )

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield drone types that this host cannot run."""
        for each in types:
            if each.gpu_milli % 1000 or each.gpu_milli > self.gpus * 1000:
                yield (
                    ("types", each.name, "gpus"),
                    f"write a whole number of GPUs, at most {self.gpus}",
                )


class SshSite:
    """Drones as processes on one host."""

    Config = SshSiteConfig
    interface_version = 1

    def __init__(
        self, name: str, config: SshSiteConfig, types: Sequence[DroneType], controller: str
    ) -> None:
        self._name = name
        self._config = config
        self._directories = DroneDirectories(self._run, config.root, controller, gpus=config.gpus)
        self._polled_before = False
        self._cleanup: asyncio.Task[None] | None = None
        self._sessions = asyncio.Semaphore(4)

    async def __aenter__(self) -> Self:
        return self  # each command connects by itself

    async def __aexit__(self, *exc: object) -> None:
        if self._cleanup is not None:
            self._cleanup.cancel()
            await asyncio.wait([self._cleanup])

    async def poll(self) -> SiteView:
        """List the drones of this controller, finished ones too."""
        view = SiteView(self._name, time.time(), await self._directories.drones())
        # `check --live` polls once
        if self._polled_before and (self._cleanup is None or self._cleanup.done()):
            self._cleanup = asyncio.create_task(self._forget_old(view))
        self._polled_before = True
        return view

    async def _forget_old(self, view: SiteView) -> None:
        with suppress(AdapterError):  # the next poll tries again
            oldest = view.taken_at - self._config.retain_finished
            await self._directories.forget(view.drones, ended_before=oldest)

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Start drones."""
        return await self._directories.start(orders)

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """Stop drones."""
        return await self._directories.stop(orders)

    async def _run(self, argv: Sequence[str], stdin: bytes, *, writes: bool) -> str:
        """Run a command on the host. Raises one of the four errors."""
        file = ["-F", str(self._config.ssh_config)] if self._config.ssh_config else []
        options = ["ssh", "-T", "-o", "BatchMode=yes", *file, "--"]
        lost = OutcomeUnknownError if writes else UnavailableError
        async with self._sessions:
            ssh = await asyncio.create_subprocess_exec(
                *options, self._config.host, shlex.join(argv), stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
            try:
                async with asyncio.timeout(self._config.deadline):
                    output, errors = await ssh.communicate(stdin)
            except TimeoutError:
                raise lost(f"no answer of {self._config.host} in time") from None
            finally:
                if ssh.returncode is None:
                    ssh.kill()
                    await ssh.wait()
        if ssh.returncode == 0:
            return output.decode(errors="replace")
        message = errors.decode(errors="replace").strip()[-300:]
        refusals = ("Permission denied", "Host key verification failed")
        if any(words in message for words in refusals):
            raise AuthError(message)
        unreachable = ("Connection refused", "Could not resolve", "No route to host")
        if any(words in message for words in unreachable):
            raise UnavailableError(message)
        raise lost(message or f"ssh ended with {ssh.returncode} before the answer was complete")
