"""Drones that slurmctld does not list any more (it forgets after MinJobAge): what accounting knows of their end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from adapters.shared.printing import printable
from adapters.slurm.records import SlurmClient, SlurmJob
from provisioner.interfaces import AdapterError
from provisioner.model import DroneId, EndKind, RemoteDrone, RemoteEnd, RemoteState

_AT_ONCE = 500


class Forgotten:
    """Remembers which drones were alive in the last listing, and asks for those that are not in the next, however long
    there was none: a cluster that could not be seen for an hour is asked what became of each."""

    def __init__(self, keep_s: float, accounting: bool | None) -> None:
        self._keep_s, self._asks = keep_s, accounting is not False
        self._alive: dict[DroneId, tuple[RemoteDrone, float]] = {}
        """As last listed, and since when a listing lacks it; 0: the last one had it."""
        self._ended: dict[DroneId, tuple[RemoteDrone, float]] = {}
        """And since when its end is known."""
        self._asked_all = False

    async def told(
        self,
        cluster: SlurmClient,
        listed: Mapping[DroneId, RemoteDrone],
        read: Callable[[Iterable[SlurmJob]], Mapping[DroneId, RemoteDrone]],
        now: float,
        withdrawn: Collection[DroneId] = (),
    ) -> tuple[Mapping[DroneId, RemoteDrone], tuple[str, ...]]:
        """Drones that are not ``listed`` though they were alive when last seen, or have ended of late, and what a
        person should know. ``read`` makes drones of jobs. ``cancelled``: those that we have cancelled; of a task of an
        array that is cancelled before it starts Slurm keeps no trace at all.

        Where accounting does not answer they are of unknown state, for as long as ends are told: "forgotten" is not
        "gone". Where it has nothing to say, they are left out. At the first look all that ended of late is asked for.
        """
        self._remember(listed, now)
        self._withdraw(listed, withdrawn, now)
        gone = {drone_id: drone for drone_id, (drone, _) in self._alive.items() if drone_id not in listed}
        notices: tuple[str, ...] = ()
        doubted: dict[DroneId, RemoteDrone] = {}
        if self._asks and (gone or not self._asked_all):
            try:
                found = await self._found(cluster, [drone.remote_id for drone in gone.values()], read, now)
            except AdapterError as error:
                notices = (printable(f"accounting does not answer: {error}", 300),)
                reason = "slurmctld has forgotten it, and accounting does not answer"
                doubted = {
                    drone_id: replace(drone, state=RemoteState.UNKNOWN, reason=reason, blocked=None)
                    for drone_id, drone in gone.items()
                }
            else:
                self._asked_all = True
                self._ended |= {d: (drone, now) for d, drone in found.items() if drone.end and d not in listed}
        for drone_id in self._ended:
            self._alive.pop(drone_id, None)
        return {**{drone_id: drone for drone_id, (drone, _) in self._ended.items()}, **doubted}, notices

    def _remember(self, listed: Mapping[DroneId, RemoteDrone], now: float) -> None:
        for drone_id, drone in listed.items():
            if drone.end is None:
                self._alive[drone_id] = drone, 0.0
            else:
                self._alive.pop(drone_id, None)
        oldest = now - self._keep_s
        self._alive = {
            drone_id: (drone, 0.0 if drone_id in listed else since or now)
            for drone_id, (drone, since) in self._alive.items()
            if not since or since > oldest or drone_id in listed
        }
        self._ended = {d: found for d, found in self._ended.items() if d not in listed and found[1] > oldest}

    def _withdraw(self, listed: Mapping[DroneId, RemoteDrone], withdrawn: Collection[DroneId], now: float) -> None:
        for drone_id, (drone, _) in list(self._alive.items()):
            if drone_id not in listed and drone.state is RemoteState.PENDING and drone_id in withdrawn:
                del self._alive[drone_id]
                end = RemoteEnd(EndKind.STOPPED, now, None, "cancelled before it started")
                gone = replace(drone, state=RemoteState.ENDED, end=end, reason="", blocked=None, expected_start_at=0.0)
                self._ended[drone_id] = gone, now

    async def _found(
        self,
        cluster: SlurmClient,
        remote_ids: list[str],
        read: Callable[[Iterable[SlurmJob]], Mapping[DroneId, RemoteDrone]],
        now: float,
    ) -> Mapping[DroneId, RemoteDrone]:
        found: dict[DroneId, RemoteDrone] = {}
        parts = [remote_ids[start : start + _AT_ONCE] for start in range(0, len(remote_ids), _AT_ONCE)]
        for ids in parts if self._asked_all else [[]]:  # with no ids the question is for all of ours
            jobs = await cluster.ended_jobs(ids, now - self._keep_s)
            if jobs is None:
                self._asks = False
                return {}
            found |= read(jobs)
        return found
