"""Draining: by HTCondor's own tool where it reaches the drone, else by an order ad that the drone reads.

Only the tools may use the secret in a startd's ad, the Python bindings cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence

from adapters.htcondor.overlay.orders import Orders
from adapters.shared.printing import printable
from provisioner.model import DrainMode, DroneId, Fault, FaultKind, OrderOutcome, OrderResult

AT_ONCE = 8
DIRECT_S = 5.0
"""Longest time for the tool where an order ad can take its place."""
TRY_AGAIN_S = 600.0
"""After the tool could not reach a drone that reads order ads, such drones get order ads alone for this long."""
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
_DENIED = ("authenticat", "denied", "not authorized", "no auth method")
"""The last: the collector gave the tool no secret of the startd, and a drone has no other way to trust anybody."""
_WHY = ("-debug",)
"""Without it the tool says the same of a startd that refuses us as of one that is not there."""


def slot_name(name: str, drone_id: DroneId) -> bool:
    """Whether a slot name out of an ad may go onto a command line: ``slot1@<drone id>@<host>``, nothing else."""
    return re.fullmatch(rf"slot\d{{1,4}}@{re.escape(drone_id)}@[A-Za-z0-9][A-Za-z0-9._-]{{0,254}}", name) is not None


class Drainer:
    """Drains of drones whose slot names are known."""

    def __init__(self, tool: str, env: Mapping[str, str], deadline_s: float, orders: Orders | None = None) -> None:
        self._tool, self._env, self._deadline_s, self._orders = tool, dict(env), deadline_s, orders
        self._room = asyncio.Semaphore(AT_ONCE)
        self._unreachable_until = 0.0
        self._by_tool: set[DroneId] = set()
        """Drained by the tool: only the tool can take that back."""

    async def drain(self, names: Mapping[DroneId, str | None], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        """Return a receipt for each; ``None`` for a name: the drone is not in the pool, so there is nothing to drain.

        The tool is first, because it takes effect at once. A drone that reads order ads gets one where the tool does
        not reach it. A drain is taken back in the way in which it was made.
        """
        if mode is DrainMode.NONE:
            return [OrderResult(drone_id, OrderOutcome.OK) for drone_id in names]
        there = {drone_id: name for drone_id, name in names.items() if name is not None and slot_name(name, drone_id)}
        readers = await self._orders.readers(there) if self._orders is not None and there else {}
        by_ad = {i for i, draining in readers.items() if mode is DrainMode.RESUME and draining}
        tool = shutil.which(self._tool, path=self._env.get("PATH"))
        async with asyncio.TaskGroup() as group:
            tasks = {
                drone_id: group.create_task(self._one(tool, drone_id, name, mode, reason, reads=drone_id in readers))
                for drone_id, name in names.items()
                if drone_id not in by_ad or drone_id in self._by_tool
            }
        receipts: dict[DroneId, OrderResult | None] = {drone_id: task.result() for drone_id, task in tasks.items()}
        failed = {i for i in readers if i in receipts and not _is_done(receipts[i])}
        taken_back = {i for i in failed & self._by_tool if mode is DrainMode.RESUME}
        wanted = [i for i in names if i in by_ad | failed - taken_back]
        if wanted and self._orders is not None:
            for drone_id, fault in (await self._orders.place(wanted, mode)).items():
                receipts[drone_id] = _together(drone_id, receipts.get(drone_id), fault, keep=drone_id in by_ad)
        return [receipts.get(i) or _receipt(i, OrderOutcome.UNKNOWN, FaultKind.UNKNOWN, "not asked") for i in names]

    async def forget(self, there: Collection[DroneId]) -> None:
        """Forget what was asked of drones that have left the pool, and withdraw their orders."""
        self._by_tool.intersection_update(there)
        if self._orders is not None:
            await self._orders.forget(there)

    async def _one(
        self, tool: str | None, drone_id: DroneId, name: str | None, mode: DrainMode, reason: str, *, reads: bool
    ) -> OrderResult | None:
        """Return the tool's receipt; None if it was not tried, as it has just failed to reach drones like this one."""
        if name is None:
            return OrderResult(drone_id, OrderOutcome.OK)
        if not slot_name(name, drone_id):
            return _receipt(
                drone_id, OrderOutcome.REJECTED, FaultKind.CONFIG, f"{printable(name, 60)!r} is no slot of it"
            )
        if tool is None:
            message = f"`{self._tool}` is not on PATH: install HTCondor's tools, or set `drain_tool`"
            return _receipt(drone_id, OrderOutcome.REJECTED, FaultKind.CONFIG, message)
        because = [] if mode is DrainMode.RESUME else ["-reason", printable(reason, 200)]
        may_fail = reads and drone_id not in self._by_tool
        deadline_s = min(DIRECT_S, self._deadline_s) if may_fail else self._deadline_s
        async with self._room:
            if may_fail and time.monotonic() < self._unreachable_until:
                return None
            try:
                code, said = await self._run([tool, *_FLAGS[mode], *_WHY, *because, name], deadline_s)
                if mode in _HARDER and _says(said, _ALREADY):
                    # a drain cannot be hurried: it is taken back and asked for anew
                    await self._run([tool, *_FLAGS[DrainMode.RESUME], name], deadline_s)
                    code, said = await self._run([tool, *_FLAGS[mode], *_WHY, *because, name], deadline_s)
                receipt = _judged(drone_id, mode, code, said)
            except TimeoutError:
                message = f"condor_drain: no answer within {deadline_s:g} s"
                receipt = _receipt(drone_id, OrderOutcome.UNKNOWN, FaultKind.DOWN, message)
            except OSError as error:
                receipt = _receipt(drone_id, OrderOutcome.REJECTED, FaultKind.CONFIG, f"{tool}: {error.strerror}")
        if receipt.answer is not OrderOutcome.OK and reads:
            self._unreachable_until = time.monotonic() + TRY_AGAIN_S
        elif receipt.answer is OrderOutcome.OK and mode is DrainMode.RESUME:
            self._by_tool.discard(drone_id)
        elif receipt.answer is OrderOutcome.OK:
            self._by_tool.add(drone_id)
        return receipt

    async def _run(self, command: Sequence[str], deadline_s: float) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(deadline_s):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, said[-2000:].decode(errors="replace").strip()


def _judged(drone_id: DroneId, mode: DrainMode, code: int, said: str) -> OrderResult:
    settled = _GONE + (_NOT_DRAINING if mode is DrainMode.RESUME else _ALREADY)
    if code == 0 or _says(said, settled):
        return OrderResult(drone_id, OrderOutcome.OK)
    kind = FaultKind.DENIED if _says(said, _DENIED) else FaultKind.DOWN
    return _receipt(drone_id, OrderOutcome.REJECTED, kind, f"condor_drain: exit {code}: {printable(said[-600:], 600)}")


def _is_done(receipt: OrderResult | None) -> bool:
    return receipt is not None and receipt.answer is OrderOutcome.OK


def _together(drone_id: DroneId, by_tool: OrderResult | None, fault: Fault | None, *, keep: bool) -> OrderResult:
    """Return the receipt of a drone that got an order ad, with ``fault`` if that failed. ``keep``: the tool's answer
    counts too."""
    if fault is None:
        return (
            by_tool
            if keep and by_tool is not None and not _is_done(by_tool)
            else OrderResult(drone_id, OrderOutcome.OK)
        )
    if by_tool is None or by_tool.fault is None:
        return OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault)
    return _receipt(drone_id, by_tool.answer, fault.kind, f"{by_tool.fault.message}; {fault.message}")


def _says(said: str, signs: Sequence[str]) -> bool:
    return any(sign in said.lower() for sign in signs)


def _receipt(drone_id: DroneId, answer: OrderOutcome, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, answer, fault=Fault(kind, message, time.time()))
