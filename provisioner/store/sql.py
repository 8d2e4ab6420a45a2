"""The record in a SQLite file: the controller's side on one worker thread, and the operator's side.

Importing this module is cheap; SQLAlchemy is imported when a :class:`SqlStore` is entered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from provisioner.estimates import EstimateSamples
from provisioner.model import (
    Breaker,
    CompletedJob,
    Drone,
    DroneId,
    DroneState,
    OperatorRequest,
    OwnerClaimBackoff,
    Plan,
    Snapshot,
    StateChange,
)
from provisioner.store import Forget, StoreError
from provisioner.store.lock import StoreLock
from provisioner.store.reader import SqlReader

if TYPE_CHECKING:
    from provisioner.store.writer import Writer

__all__ = ["SqlReader", "SqlStore"]

T = TypeVar("T")


class SqlStore:
    """:class:`provisioner.store.Store` in a SQLite file.

    ``keep_s``: how long ended drones, plans and events are kept. ``snapshots``: how many full snapshots of acting
    ticks. ``threaded``: work in one thread of its own, so that a slow disk does not stop the loop; without it, inline,
    for a loop on a virtual clock. ``birth`` is drawn for a new store unless given (for reproducible runs).
    """

    def __init__(
        self,
        path: Path,
        controller: str,
        keep_s: float,
        snapshots: int,
        threaded: bool = True,
        *,
        birth: str | None = None,
    ) -> None:
        self.path = path
        self._controller = controller
        self._keep_s = keep_s
        self._snapshots = snapshots
        self._threaded = threaded
        self._new_birth = birth
        self._lock = StoreLock(path)
        self._worker: ThreadPoolExecutor | None = None
        self._writer: Writer | None = None

    @property
    def birth(self) -> str:
        return self._opened.birth

    @property
    def tick(self) -> int:
        return self._opened.mirror.tick

    @property
    def next_serial(self) -> int:
        return self._opened.mirror.next_serial

    @property
    def drones(self) -> Mapping[DroneId, Drone]:
        return self._opened.mirror.drones

    @property
    def breakers(self) -> Mapping[str, Breaker]:
        return self._opened.mirror.breakers

    @property
    def patience(self) -> Mapping[str, OwnerClaimBackoff]:
        return self._opened.mirror.patience

    @property
    def recorded_at(self) -> float:
        return self._opened.mirror.at

    @property
    def recorded_drift_s(self) -> float:
        return self._opened.mirror.drift_s

    async def __aenter__(self) -> Self:
        if self._writer is not None:
            raise StoreError(f"store {self.path} is already open here")
        if self._threaded:
            self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            await self._do(self._open)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def requests(self) -> tuple[OperatorRequest, ...]:
        return await self._do(self._opened.requests)

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        writer = self._opened
        await self._do(lambda: writer.record(plan, snapshot))

    async def settle(
        self, tick: int, moves: Sequence[StateChange], breakers: Sequence[Breaker], *, set_to: float | None = None
    ) -> None:
        writer = self._opened
        await self._do(lambda: writer.settle(tick, moves, breakers, set_to))

    async def event(self, at: float, name: str, fields: Mapping[str, str | int | float]) -> None:
        writer = self._opened
        await self._do(lambda: writer.event(at, name, fields))

    async def keep(self, at: float, words: Mapping[DroneId, str]) -> None:
        writer = self._opened
        await self._do(lambda: writer.keep(at, words))

    async def completed(self, completions: Sequence[CompletedJob]) -> None:
        writer = self._opened
        await self._do(lambda: writer.completed(completions))

    async def experience(self) -> EstimateSamples | None:
        return await self._do(self._opened.experience)

    async def learn(self, experience: EstimateSamples, forgotten: Sequence[int] = ()) -> None:
        writer = self._opened
        await self._do(lambda: writer.learn(experience, forgotten))

    async def forgets(self) -> tuple[Forget, ...]:
        return await self._do(self._opened.forgets)

    async def ended(self, drone_ids: Sequence[DroneId]) -> Mapping[DroneId, DroneState]:
        writer = self._opened
        return await self._do(lambda: writer.ended(drone_ids))

    async def prune(self, now: float) -> bool:
        writer = self._opened
        return await self._do(lambda: writer.prune(now - self._keep_s))

    @property
    def _opened(self) -> Writer:
        if self._writer is None:
            raise StoreError(f"store {self.path} is not open")
        return self._writer

    def _open(self) -> None:
        from provisioner.store.writer import Writer  # SQLAlchemy takes 0.2 s to import: readers do without

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store {self.path}: cannot make its directory: {error}") from error
        holder = self._lock.take()
        real = Path(os.path.realpath(self.path))  # the lock's file and SQLite's own lie beside it
        self._writer = Writer(real, self._controller, self._snapshots, self._new_birth, holder)

    async def _close(self) -> None:
        if self._writer is not None:
            await self._do(self._writer.close)
            self._writer = None
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        self._lock.release()

    async def _do(self, work: Callable[[], T]) -> T:
        """Run blocking ``work`` to its end. A cancelled caller waits for that end too: a commit half known is worse.

        There is no deadline for the same reason; the file is on a local disk.
        """
        if self._worker is None:
            return work()
        running = asyncio.get_running_loop().run_in_executor(self._worker, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                await asyncio.wait([running])
            raise
