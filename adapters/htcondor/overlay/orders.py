"""Orders to drones through the collector: they reach a drone that no connection from the controller can reach."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence

from adapters.shared.htcondor.client_directory import ClientDirectory
from provisioner.interfaces import AdapterError, AuthError
from provisioner.model import DrainMode, DroneId, Fault, FaultKind
from provisioner.worker_process import WorkerProcess

READ_EVERY_S = 10.0
"""Interval at which a drone asks the collector for its order. A query takes the collector some 20 ms."""
READS_PER_S = 10.0
"""In a large pool drones ask less often, so that all of them together ask about this often."""
DEADLINE_S = 10.0


def read_every_s(drones: int) -> float:
    """Return how often each of so many drones asks for its order, in seconds."""
    return max(READ_EVERY_S, drones / READS_PER_S)


class Orders:
    """Order ads of one controller. A drone obeys an order ad once, if the collector says that we advertised it."""

    def __init__(self, collector: str, issuer: str, directory: ClientDirectory) -> None:
        self._issuer, self._directory = issuer, directory
        self._child = WorkerProcess(
            "adapters.htcondor.overlay.order_ads:OrderAds",
            collector,
            # a log of its own: why something failed is read out of it
            env=directory.env | {"_CONDOR_TOOL_LOG": str(directory.path / "orders.log")},
        )
        self._standing: dict[DroneId, tuple[int, DrainMode]] = {}
        """Serial number and mode of the order of each drone; the same order keeps its number."""

    def identities(self) -> tuple[str, ...]:
        """Return the identities whose orders our drones obey: those of our tokens. None if no token tells any."""
        try:
            return self._directory.identities(self._issuer)
        except AuthError:
            return ()

    async def readers(self, drone_ids: Collection[DroneId]) -> Mapping[DroneId, bool]:
        """Return the drones that read order ads, each with whether it drains because of one. None where the collector
        does not answer."""
        try:
            found: Mapping[DroneId, bool] = await self._child.call("readers", list(drone_ids), deadline_s=DEADLINE_S)
        except AdapterError:
            return {}
        return found

    async def place(self, drone_ids: Sequence[DroneId], mode: DrainMode) -> Mapping[DroneId, Fault | None]:
        """Advertise an order for each drone; return why it does not stand in the collector, or None if it does."""
        orders = {drone_id: self._order(drone_id, mode) for drone_id in drone_ids}
        plain = {drone_id: (serial, mode.value) for drone_id, (serial, _) in orders.items()}
        try:
            placed = await self._child.call("place", plain, list(self.identities()), deadline_s=DEADLINE_S)
        except AdapterError as error:
            fault = Fault(error.kind, f"order ad: {error}", time.time())
            return dict.fromkeys(drone_ids, fault)
        for drone_id in placed:
            self._standing[drone_id] = orders[drone_id]
        missing = Fault(FaultKind.DOWN, "order ad: the collector does not list it", time.time())
        return {drone_id: None if drone_id in placed else missing for drone_id in drone_ids}

    async def rehearse(self, name: DroneId) -> Fault | None:
        """Return why an order would not reach a drone; None if one stood in the collector, from where it was withdrawn
        again. ``name``: an id that no drone has."""
        if not self.identities():
            return Fault(FaultKind.CONFIG, f"none of our tokens is of `trust_domain` {self._issuer}", time.time())
        refused = (await self.place([name], DrainMode.PEACEFUL))[name]
        if name in self._standing:
            del self._standing[name]
            await self._withdraw([name])
        return refused

    async def forget(self, there: Collection[DroneId]) -> None:
        """Withdraw the orders of drones that have left the pool. The collector forgets them in time anyway."""
        gone = [drone_id for drone_id in self._standing if drone_id not in there]
        for drone_id in gone:
            del self._standing[drone_id]
        if gone:
            await self._withdraw(gone)

    async def _withdraw(self, drone_ids: Sequence[DroneId]) -> None:
        with contextlib.suppress(AdapterError):
            await self._child.call("withdraw", list(drone_ids), deadline_s=DEADLINE_S)

    async def close(self) -> None:
        """End the child. Orders that stand are left to the drones."""
        await self._child.close()

    def _order(self, drone_id: DroneId, mode: DrainMode) -> tuple[int, DrainMode]:
        standing = self._standing.get(drone_id)
        if standing is not None and standing[1] is mode:
            return standing
        # of a drone's last order only that it is another one counts, so a clock that was set back does no harm
        serial = time.time_ns() // 1_000_000
        return (max(serial, standing[0] + 1) if standing else serial), mode
