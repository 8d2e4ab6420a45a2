"""Drains: by HTCondor's own tool where it reaches the drone, else by an order ad that the drone reads.

Only the tools may use the secret in a startd's ad, the Python bindings cannot. An order ad in the
collector reaches a drone that no connection from the controller can reach. The worker process with
the bindings, which block, also has the collector drop the ads of dead drones.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapters.htcondor import classad2, htcondor2
from adapters.htcondor.classads import text, value
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay.slots import OUR_SLOTS
from adapters.htcondor.tokens import ClientDirectory
from adapters.shared.commands.local import LocalRunner
from adapters.shared.commands.runner import NoReplyError
from adapters.shared.printing import printable
from adapters.shared.starts import done, failed
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import (
    DrainMode,
    DroneId,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OrderResults,
)
from provisioner.worker_process import WorkerProcess

COLLECTOR_ADS = "adapters.htcondor.overlay.drain:CollectorAds"
DRAINS_AT_ONCE = 8
TOOL_TIMEOUT_S = 5.0  # longest time for the tool where an order ad can take its place
TOOL_RETRY_S = 600.0
"""After the tool could not reach a drone that reads order ads, such drones get order ads alone for this long."""
_DRAIN_FLAGS: Mapping[DrainMode, tuple[str, ...]] = {
    DrainMode.PEACEFUL: ("-graceful", "-exit-on-completion"),
    DrainMode.GRACEFUL: ("-quick", "-exit-on-completion"),
    DrainMode.FAST: ("-fast", "-exit-on-completion"),
    DrainMode.RESUME: ("-cancel",),
}
_UNKNOWN_STARTD = (
    "can't find address",
    "unknown host",
    "failed to locate",
    "couldn't locate",
    "no such startd",
)
_ALREADY_DRAINING = ("already draining", "draining already in progress")
_NOT_DRAINING = ("no matching draining request", "not draining")
_TOOL_DENIALS = ("authenticat", "denied", "not authorized", "no auth method")
"""The last: the collector gave the tool no secret of the startd, and a drone has no other way to trust anybody."""
# without it the tool says the same of a startd that refuses us as of one that is not there
_DEBUG_FLAG = "-debug"


def slot_name(name: str, drone_id: DroneId) -> bool:
    """Return True if a slot name of an ad may go onto a command line: ``slot1@<drone id>@<host>``, nothing else."""
    return (
        re.fullmatch(
            rf"slot\d{{1,4}}@{re.escape(drone_id)}@[A-Za-z0-9][A-Za-z0-9._-]{{0,254}}", name
        )
        is not None
    )


class Drainer:
    """Drains of drones whose slot names are known."""

    def __init__(
        self, tool: str, env: Mapping[str, str], deadline_s: float, orders: DrainOrders
    ) -> None:
        self._tool = tool
        self._env = dict(env)
        self._deadline_s = deadline_s
        self._orders = orders
        self._runner = LocalRunner(env)
        self._room = asyncio.Semaphore(DRAINS_AT_ONCE)
        self._unreachable_until = 0.0
        self._by_tool: set[DroneId] = set()  # drained by the tool: only the tool can take that back

    async def drain(
        self, names: Mapping[DroneId, str | None], mode: DrainMode, reason: str
    ) -> OrderResults:
        """Drain drones by name of their slot; None: it is not in the pool, so there is nothing to drain.

        The tool is first, because it takes effect at once. A drone that reads order ads gets one
        where the tool does not reach it. A drain is cancelled in the way in which it was made.
        """
        if mode is DrainMode.NONE:
            return list(map(done, names))
        readers = await self._readers(names)
        by_ad = {i for i, draining in readers.items() if mode is DrainMode.RESUME and draining}
        by_tool = [i for i in names if i not in by_ad or i in self._by_tool]
        answers = (self._one(i, names[i], mode, reason, reads=i in readers) for i in by_tool)
        results: dict[DroneId, OrderResult | None] = dict(
            zip(by_tool, await asyncio.gather(*answers), strict=True)
        )
        by_tool_alone = self._by_tool if mode is DrainMode.RESUME else set()
        unreached = {i for i, result in results.items() if result is None or result.fault}
        by_ad |= (unreached & readers.keys()) - by_tool_alone
        if by_ad:
            faults = await self._orders.place([i for i in names if i in by_ad], mode)
            for i, fault in faults.items():
                results[i] = _together(i, results.get(i), fault, i in by_tool_alone)
        unknown = OutcomeUnknownError("not asked")
        return [results.get(drone_id) or failed(drone_id, unknown) for drone_id in names]

    async def _readers(self, names: Mapping[DroneId, str | None]) -> Mapping[DroneId, bool]:
        """Return the drones in the pool that read order ads, each with True if it drains by one."""
        there = [i for i, name in names.items() if name is not None and slot_name(name, i)]
        return await self._orders.readers(there) if there else {}

    async def forget(self, there: Collection[DroneId]) -> None:
        """Forget what was asked of drones that have left the pool, and withdraw their orders."""
        self._by_tool.intersection_update(there)
        await self._orders.forget(there)

    async def _one(
        self, drone_id: DroneId, name: str | None, mode: DrainMode, reason: str, *, reads: bool
    ) -> OrderResult | None:
        """Drain one drone by the tool; None if that has just failed to reach drones like this one."""
        if name is None:
            return done(drone_id)
        may_fail = reads and drone_id not in self._by_tool
        async with self._room:
            if may_fail and time.monotonic() < self._unreachable_until:
                return None
            try:
                await self._by_the_tool(
                    drone_id, name, mode, reason, TOOL_TIMEOUT_S if may_fail else math.inf
                )
                return done(drone_id)
            except NoReplyError as error:
                result = failed(drone_id, OutcomeUnknownError(str(error), FaultKind.DOWN))
            except AdapterError as error:
                result = failed(drone_id, error)
        if reads:
            self._unreachable_until = time.monotonic() + TOOL_RETRY_S
        return result

    async def _by_the_tool(
        self, drone_id: DroneId, name: str, mode: DrainMode, reason: str, limit_s: float
    ) -> None:
        if not slot_name(name, drone_id):
            raise RejectedError(f"{printable(name, 60)!r} is no slot of it", FaultKind.CONFIG)
        if (tool := shutil.which(self._tool, path=self._env.get("PATH"))) is None:
            message = (
                f"`{self._tool}` is not on PATH: install HTCondor's tools, or set `drain_tool`"
            )
            raise RejectedError(message, FaultKind.CONFIG)

        async def run(mode: DrainMode, *options: str) -> tuple[int, str]:
            command = [tool, *_DRAIN_FLAGS[mode], *options, name]
            done = await self._runner.run(command, deadline_s=min(limit_s, self._deadline_s))
            return done.code, (done.out + done.err)[-2000:].decode(errors="replace").strip()

        resumes = mode is DrainMode.RESUME
        options = (_DEBUG_FLAG, *(() if resumes else ("-reason", printable(reason, 200))))
        code, said = await run(mode, *options)
        if mode in (DrainMode.GRACEFUL, DrainMode.FAST) and _says(said, _ALREADY_DRAINING):
            # a drain cannot be hurried: it is taken back and asked for anew
            await run(DrainMode.RESUME)
            code, said = await run(mode, *options)
        if code and not _says(
            said, _UNKNOWN_STARTD + (_NOT_DRAINING if resumes else _ALREADY_DRAINING)
        ):
            kind = FaultKind.DENIED if _says(said, _TOOL_DENIALS) else FaultKind.DOWN
            raise UnavailableError(
                f"condor_drain: exit {code}: {printable(said[-600:], 600)}", kind
            )
        (self._by_tool.discard if resumes else self._by_tool.add)(drone_id)


def _together(
    drone_id: DroneId, by_tool: OrderResult | None, fault: Fault | None, keep: bool
) -> OrderResult:
    """Return the result of a drone that got an order ad, with ``fault`` if that failed. ``keep``: the tool's counts."""
    if fault is None:
        return by_tool if keep and by_tool is not None else done(drone_id)
    if by_tool is None or by_tool.fault is None:
        return OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault)
    return replace(
        by_tool, fault=replace(fault, message=f"{by_tool.fault.message}; {fault.message}")
    )


def _says(said: str, signs: Sequence[str]) -> bool:
    return any(sign in said.lower() for sign in signs)


ORDER_READ_INTERVAL_S = 2.0
"""Interval at which an idle drone asks the collector for its order. That takes 2 ms of the collector's processor."""
# in a large pool drones ask less often, so that all of them together ask about this often
ORDER_READS_PER_S = 50.0
ORDER_TIMEOUT_S = 10.0
REHEARSAL_TIMEOUT_S = 30.0  # no drone waits for the answer to a rehearsal


def read_every_s(drones: int) -> float:
    """Return how often each of so many drones asks for its order, in seconds."""
    return max(ORDER_READ_INTERVAL_S, drones / ORDER_READS_PER_S)


class DrainOrders:
    """Order ads of one controller. A drone obeys an order ad once, if the collector says that we advertised it."""

    def __init__(self, collector: str, issuer: str, directory: ClientDirectory) -> None:
        self._issuer = issuer
        self._directory = directory
        self._child = WorkerProcess(
            COLLECTOR_ADS,
            collector,
            # a log of its own: why something failed is read out of it
            env=directory.env | {"_CONDOR_TOOL_LOG": str(directory.path / "orders.log")},
        )
        self._standing: dict[DroneId, tuple[int, DrainMode]] = {}
        """Serial number and mode of the order of each drone; the same order keeps its number."""

    def identities(self) -> tuple[str, ...]:
        return self._directory.identities(self._issuer)

    async def readers(self, drone_ids: Collection[DroneId]) -> Mapping[DroneId, bool]:
        """Return the drones that read order ads, each with True if it drains by one; none if no collector answers."""
        try:
            found: Mapping[DroneId, bool] = await self._call("readers", list(drone_ids))
        except AdapterError:
            return {}
        return found

    async def place(
        self, drone_ids: Sequence[DroneId], mode: DrainMode, within_s: float = ORDER_TIMEOUT_S
    ) -> Mapping[DroneId, Fault | None]:
        """Advertise an order for each drone; return why the collector does not list it, or None if it does."""
        orders = {drone_id: self._order(drone_id, mode) for drone_id in drone_ids}
        plain = {drone_id: (serial, mode.value) for drone_id, (serial, _) in orders.items()}
        missing = Fault(FaultKind.DOWN, "order ad: the collector does not list it", time.time())
        placed: Sequence[DroneId] = ()
        try:
            placed = await self._call("place", plain, list(self.identities()), within_s=within_s)
        except AdapterError as error:
            missing = Fault(error.kind, f"order ad: {error}", time.time())
        self._standing |= {drone_id: orders[drone_id] for drone_id in placed}
        return {drone_id: None if drone_id in placed else missing for drone_id in drone_ids}

    async def rehearse(self, name: DroneId) -> Fault | None:
        """Return why an order would not reach a drone; None if it would. ``name``: an id that no drone has."""
        if not self.identities():
            return Fault(
                FaultKind.CONFIG,
                f"the controller has no token of `trust_domain` {self._issuer}",
                time.time(),
            )
        refused = (await self.place([name], DrainMode.PEACEFUL, REHEARSAL_TIMEOUT_S))[name]
        await self.forget(self._standing.keys() - {name})
        return refused

    async def forget(self, there: Collection[DroneId]) -> None:
        """Withdraw the orders of drones that have left the pool. The collector forgets them in time anyway."""
        gone = [drone_id for drone_id in self._standing if drone_id not in there]
        for drone_id in gone:
            del self._standing[drone_id]
        if gone:
            with contextlib.suppress(AdapterError):
                await self._call("withdraw", gone)

    async def _call(self, name: str, *args: object, within_s: float = ORDER_TIMEOUT_S) -> Any:
        return await self._child.call(name, *args, deadline_s=within_s)

    async def close(self) -> None:
        """End the child. Orders that stand are left to the drones."""
        await self._child.close()

    def _order(self, drone_id: DroneId, mode: DrainMode) -> tuple[int, DrainMode]:
        standing = self._standing.get(drone_id)
        if standing is not None and standing[1] is mode:
            return standing
        # of a drone's last order only that it is another one counts, so a clock that was set back
        # does no harm
        serial = time.time_ns() // 1_000_000
        return (max(serial, standing[0] + 1) if standing else serial), mode


# --------------------------------------------------------------------------------------------- in
# the worker process

ORDER_LIFETIME_S = 900
"""An order that its drone has not read by then is forgotten by the collector; the planner asks again."""
# the collector may answer a query before it has taken in the ads that were sent just before
_ORDER_READ_BACK_S = 3.0
# longest wait until the collector no longer lists the ads of dead drones
INVALIDATE_TIMEOUT_S = 5.0
_ROUNDING_S = 1.0  # the collector keeps whole seconds
_ADVICE = "allow the identity of the drones' tokens ADVERTISE_STARTD and ADVERTISE_MASTER at the collector"


_SENDER = "AuthenticatedIdentity"


class CollectorAds:
    """The worker's calls for ads that the controller places in the collectors or has them drop.

    Drone ids were checked before. A drone that ends in order withdraws its own ads. Those of one
    that was killed stay for CLASSAD_LIFETIME, and the negotiator matches jobs to its slot for as
    long.
    """

    def __init__(self, collector: str) -> None:
        self._collector = Collectors(collector)

    def readers(self, drone_ids: Collection[str]) -> Mapping[str, bool]:
        """Return those of the drones that read order ads, each with True if it drains because of one."""
        constraint = f"{OUR_SLOTS} && DroneOrder isnt undefined"
        ads = self._collector.query(
            htcondor2.AdType.Startd, constraint, ["DroneId", "DroneDraining"]
        )
        wanted = set(drone_ids)
        return {
            i: value(ad, "DroneDraining") is True
            for ad in ads
            if (i := text(ad, "DroneId", 63)) in wanted
        }

    def place(
        self, orders: Mapping[str, tuple[int, str]], identities: Sequence[str]
    ) -> Sequence[str]:
        """Advertise orders (number, mode); return those listed under one of ``identities``, AuthError if none."""
        kind = {"MyType": "Generic", "ClassAdLifetime": ORDER_LIFETIME_S}
        ads = [
            classad2.ClassAd(
                {
                    **kind,
                    "Name": each,
                    "DroneOrderFor": each,
                    "DroneOrder": serial,
                    "DroneOrderMode": mode,
                }
            )
            for each, (serial, mode) in orders.items()
        ]
        self._collector.advertise(ads, "UPDATE_AD_GENERIC")
        limit = time.monotonic() + _ORDER_READ_BACK_S
        projection = ("DroneOrderFor", "DroneOrder", _SENDER)
        while True:
            listed = self._collector.query(
                htcondor2.AdType.Generic, "DroneOrderFor isnt undefined", projection
            )
            numbered = (
                (text(ad, "DroneOrderFor", 63), value(ad, "DroneOrder"), text(ad, _SENDER, 200))
                for ad in listed
            )
            senders = {
                each: sender
                for each, serial, sender in numbered
                if each in orders and serial == orders[each][0]
            }
            ours = [drone_id for drone_id in orders if senders.get(drone_id) in identities]
            if len(ours) == len(orders) or time.monotonic() > limit:
                break
            time.sleep(0.1)
        if ours:
            return ours
        whom = f"collector {self._collector.addresses}"
        if others := sorted(set(senders.values())):
            seen = printable(", ".join(others), 120)
            expected = ", ".join(identities)
            raise AuthError(
                f"{whom} maps the controller to {seen}, drones obey {expected}: use a token of that identity"
            )
        raise AuthError(
            f"{whom} does not list the controller's order ads: allow its identity DAEMON there"
        )

    def withdraw(self, drone_ids: Collection[str]) -> None:
        wanted = " || ".join(f'DroneOrderFor == "{drone_id}"' for drone_id in drone_ids)
        self._collector.invalidate("Generic", "INVALIDATE_ADS_GENERIC", wanted)

    def remove(self, ended_at: Mapping[str, float]) -> None:
        """Have the collectors drop ads of drones that ended then (our clock), but not those that were sent since."""

        def gone() -> str:
            now = time.time()
            return " || ".join(silent(drone_id, now - at) for drone_id, at in ended_at.items())

        try:
            self._collector.invalidate("Machine", "INVALIDATE_STARTD_ADS", gone())
            self._collector.invalidate("DaemonMaster", "INVALIDATE_MASTER_ADS", gone())
        except AuthError as error:
            raise AuthError(f"{_ADVICE}: {error}", error.kind) from None
        limit = time.monotonic() + INVALIDATE_TIMEOUT_S
        kinds = (htcondor2.AdType.Startd, htcondor2.AdType.Master)
        while left := [
            ad for kind in kinds for ad in self._collector.query(kind, gone(), ["Name"])
        ]:
            if time.monotonic() > limit:
                name = text(left[0], "Name", 200) or "an ad without a name"
                raise AuthError(
                    f"{_ADVICE}: collector {self._collector.addresses} still lists {name}"
                )
            time.sleep(0.2)


def silent(drone_id: str, for_s: float) -> str:
    """Return the constraint for the ads of a drone that has been silent for this long, by the collector's clock."""
    return f"(DroneId =?= {classad2.quote(drone_id)} && time() - LastHeardFrom >= {max(0, int(for_s - _ROUNDING_S))})"
