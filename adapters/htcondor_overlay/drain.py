"""Draining by HTCondor's own tool: only the tools may use the secret in a startd's ad, the Python bindings cannot."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import Mapping, Sequence

from adapters.shared.printing import printable
from provisioner.model import Answer, DrainMode, DroneId, Fault, FaultKind, Receipt

AT_ONCE = 8
_FLAGS: Mapping[DrainMode, tuple[str, ...]] = {
    DrainMode.PEACEFUL: ("-graceful", "-exit-on-completion"),
    DrainMode.GRACEFUL: ("-quick", "-exit-on-completion"),
    DrainMode.FAST: ("-fast", "-exit-on-completion"),
    DrainMode.RESUME: ("-cancel",),
}
_HARDER = (DrainMode.GRACEFUL, DrainMode.FAST)
_GONE = ("can't find address", "unknown host", "failed to locate", "couldn't locate", "no such startd")
_ALREADY = ("already draining", "draining already in progress")
_NOT_DRAINING = ("no matching draining request", "not draining")
_DENIED = ("authenticat", "denied", "not authorized")
_WHY = ("-debug",)
"""Without it the tool says the same of a startd that refuses us as of one that is not there."""


def slot_name(name: str, drone_id: DroneId) -> bool:
    """Whether a slot name out of an ad may go onto a command line: ``slot1@<drone id>@<host>``, nothing else."""
    return re.fullmatch(rf"slot\d{{1,4}}@{re.escape(drone_id)}@[A-Za-z0-9][A-Za-z0-9._-]{{0,254}}", name) is not None


class Drainer:
    """Runs ``condor_drain`` for drones whose slot names are known."""

    def __init__(self, tool: str, env: Mapping[str, str], deadline_s: float) -> None:
        self._tool, self._env, self._deadline_s = tool, dict(env), deadline_s
        self._room = asyncio.Semaphore(AT_ONCE)

    async def drain(self, names: Mapping[DroneId, str | None], mode: DrainMode, reason: str) -> Sequence[Receipt]:
        """A receipt for each; ``None`` for a name: the drone is not in the pool, so there is nothing to drain."""
        if mode is DrainMode.NONE:
            return [Receipt(drone_id, Answer.DONE) for drone_id in names]
        tool = shutil.which(self._tool, path=self._env.get("PATH"))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(tool, *item, mode, reason)) for item in names.items()]
        return [task.result() for task in tasks]

    async def _one(
        self, tool: str | None, drone_id: DroneId, name: str | None, mode: DrainMode, reason: str
    ) -> Receipt:
        if name is None:
            return Receipt(drone_id, Answer.DONE)
        if not slot_name(name, drone_id):
            return _receipt(drone_id, Answer.REFUSED, FaultKind.CONFIG, f"{printable(name, 60)!r} is no slot of it")
        if tool is None:
            message = f"`{self._tool}` is not on PATH: install HTCondor's tools, or set `drain_tool`"
            return _receipt(drone_id, Answer.REFUSED, FaultKind.CONFIG, message)
        because = [] if mode is DrainMode.RESUME else ["-reason", printable(reason, 200)]
        async with self._room:
            try:
                code, said = await self._run([tool, *_FLAGS[mode], *_WHY, *because, name])
                if mode in _HARDER and _says(said, _ALREADY):
                    # a drain cannot be hurried: it is taken back and asked for anew
                    await self._run([tool, *_FLAGS[DrainMode.RESUME], name])
                    code, said = await self._run([tool, *_FLAGS[mode], *_WHY, *because, name])
            except TimeoutError:
                message = f"condor_drain: no answer within {self._deadline_s:g} s"
                return _receipt(drone_id, Answer.UNSURE, FaultKind.DOWN, message)
            except OSError as error:
                return _receipt(drone_id, Answer.REFUSED, FaultKind.CONFIG, f"{tool}: {error.strerror}")
        return _judged(drone_id, mode, code, said)

    async def _run(self, command: Sequence[str]) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._deadline_s):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, said[-2000:].decode(errors="replace").strip()


def _judged(drone_id: DroneId, mode: DrainMode, code: int, said: str) -> Receipt:
    settled = _GONE + (_NOT_DRAINING if mode is DrainMode.RESUME else _ALREADY)
    if code == 0 or _says(said, settled):
        return Receipt(drone_id, Answer.DONE)
    kind = FaultKind.DENIED if _says(said, _DENIED) else FaultKind.DOWN
    return _receipt(drone_id, Answer.REFUSED, kind, f"condor_drain: exit {code}: {printable(said[-600:], 600)}")


def _says(said: str, signs: Sequence[str]) -> bool:
    return any(sign in said.lower() for sign in signs)


def _receipt(drone_id: DroneId, answer: Answer, kind: FaultKind, message: str) -> Receipt:
    return Receipt(drone_id, answer, fault=Fault(kind, message, time.time()))
