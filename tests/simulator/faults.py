"""Faults of services as data, and scenarios whose calls meet them: between controller and world all may go wrong."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import (
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OverlayView,
    RemoteState,
    SiteView,
)
from provisioner.simulator.loop import Draw, Network, VirtualClock, after, now_s, rng_for
from provisioner.simulator.world import Scenario

T = TypeVar("T")


class ServiceFaultKind(StrEnum):
    """Fault of one call. *Amount* means :attr:`ServiceFault.amount`."""

    # refused or broken, nothing done
    DOWN = "down"
    DENIED = "denied"
    QUOTA = "quota"
    BUG = "bug"
    """The adapter raises something that is none of the four errors."""
    # acts: the wire
    ORDER_LOST = "order-lost"
    """Not carried out; OutcomeUnknownError."""
    ORDER_HANGS = "order-hangs"
    """Not carried out; no answer until the caller's deadline."""
    REPLY_LOST = "reply-lost"
    """Carried out; OutcomeUnknownError."""
    REPLY_HANGS = "reply-hangs"
    """Carried out; no answer until the caller's deadline."""
    REPLY_TORN = "reply-torn"
    """Carried out; the outcome of a fraction (amount) of the orders is unknown."""
    LATE = "late"
    """Carried out amount seconds after it was sent; never an answer."""
    TWICE = "twice"
    """Carried out, and once more amount seconds later."""
    SLOW = "slow"
    """The answer takes amount seconds longer."""
    # polls: hangs and false views
    HANG = "hang"
    EMPTY = "empty"
    PARTIAL = "partial"
    """A fraction (amount) of the drones or slots is not listed: the same ones as long as the fault lasts."""
    STALE = "stale"
    """An old listing with a new date."""
    FREE_WRONG = "free-wrong"
    """The site says that amount drones of each type could start."""
    UNKNOWN_STATES = "unknown-states"


VIEW_FAULTS = frozenset(
    map(ServiceFaultKind, ("empty", "partial", "stale", "free-wrong", "unknown-states"))
)
_REFUSALS: Mapping[
    ServiceFaultKind, tuple[Callable[..., Exception], str, tuple[FaultKind, ...]]
] = {
    ServiceFaultKind.DOWN: (UnavailableError, "no route to host", ()),
    ServiceFaultKind.DENIED: (AuthError, "token expired", ()),
    ServiceFaultKind.QUOTA: (RejectedError, "quota exceeded", (FaultKind.QUOTA,)),
    ServiceFaultKind.ORDER_LOST: (OutcomeUnknownError, "connection reset while sending", ()),
}
"""Errors, and what they say, of the faults that leave nothing done."""


@dataclass(frozen=True, slots=True)
class ServiceFault:
    """Calls of ``verb`` to ``where`` meet this fault, each with ``chance``, from ``from_s`` until ``to_s``."""

    kind: ServiceFaultKind
    where: str = "*"
    """A site, the overlay, or ``*``."""
    verb: str = "*"
    """``poll``, ``start``, ``stop``, ``drain``, ``bootstrap``, ``act`` (any of the last four), or ``*``."""
    from_s: float = 0.0
    to_s: float = math.inf
    chance: float = 1.0
    amount: float = 0.0

    def covers(self, where: str, verb: str) -> bool:
        return (
            self.from_s <= now_s() < self.to_s
            and self.where in ("*", where)
            and (self.verb in ("*", verb) or (self.verb == "act" and verb != "poll"))
        )


@dataclass(frozen=True, slots=True)
class FaultyScenario(Scenario):
    """A scenario whose calls meet faults."""

    service_faults: tuple[ServiceFault, ...] = ()
    faults_met: Counter[ServiceFaultKind] = field(
        default_factory=Counter, init=False, compare=False
    )
    """Calls that a fault has hit."""

    def network(self, name: str, latency: Draw) -> Network:
        return FaultyNetwork(name, latency, self)


class FaultyNetwork(Network):
    """Calls to one part of the world, which meet the faults of a scenario."""

    def __init__(self, name: str, latency: Draw, scenario: FaultyScenario) -> None:
        super().__init__(name, latency, scenario.seed)
        self._scenario = scenario
        self._frozen: dict[int, Any] = {}

    async def call(self, verb: str, carry_out: Callable[[], T]) -> T:
        latency_s = self.latency_s()
        fault = self._fault(verb)
        if fault is None:
            return await self.exchange(carry_out, latency_s)
        self._scenario.faults_met[fault.kind] += 1
        if verb == "poll" and fault.kind in VIEW_FAULTS:
            return self._distorted(await self.exchange(carry_out, latency_s), fault)
        if fault.kind is ServiceFaultKind.REPLY_TORN:
            result: Any = await self.exchange(carry_out, latency_s)
            torn: Any = (
                [self._torn(each, fault) for each in result] if isinstance(result, list) else result
            )
            return torn  # type: ignore[no-any-return]
        return await self._hit(carry_out, latency_s, fault)

    def _fault(self, verb: str) -> ServiceFault | None:
        """Return the first fault that hits this call, if any."""
        for index, fault in enumerate(self._scenario.service_faults):
            if fault.covers(self.name, verb) and (
                fault.chance >= 1.0
                or rng_for(self.seed, "spell", index, self.name, self.calls).random() < fault.chance
            ):
                return fault
        return None

    async def _hit(self, carry_out: Callable[[], T], latency_s: float, fault: ServiceFault) -> T:
        match fault.kind:
            case ServiceFaultKind.SLOW:
                return await self.exchange(carry_out, latency_s + fault.amount)
            case ServiceFaultKind.TWICE:
                after(latency_s + fault.amount, _carry_out_unheard, carry_out)
                return await self.exchange(carry_out, latency_s)
            case ServiceFaultKind.LATE:
                after(fault.amount, _carry_out_unheard, carry_out)
                return await _never()
            case ServiceFaultKind.REPLY_HANGS:
                after(latency_s / 2, _carry_out_unheard, carry_out)
                return await _never()
            case ServiceFaultKind.REPLY_LOST:
                await self.exchange(carry_out, latency_s)
                raise OutcomeUnknownError(f"{self.name}: connection lost before the answer")
            case ServiceFaultKind.HANG | ServiceFaultKind.ORDER_HANGS:
                return await _never()
            case kind:
                await asyncio.sleep(latency_s)
                if kind not in _REFUSALS:
                    raise KeyError(f"{self.name}: an adapter's own mistake ({kind})")
                error, words, more = _REFUSALS[kind]
                raise error(f"{self.name}: {words}", *more)

    def _torn(self, result: OrderResult, fault: ServiceFault) -> OrderResult:
        if rng_for(self.seed, "torn", self.calls, result.drone_id).random() >= fault.amount:
            return result
        error = Fault(FaultKind.UNKNOWN, "the answer was torn", VirtualClock().now())
        return replace(result, answer=OrderOutcome.UNKNOWN, remote_id="", fault=error)

    def _distorted(self, view: Any, fault: ServiceFault) -> Any:
        """Return a true view of a site or the overlay as a fault distorts it."""
        assert isinstance(view, SiteView | OverlayView)
        match fault.kind, view:
            case ServiceFaultKind.STALE, _:
                return replace(self._frozen.setdefault(id(fault), view), taken_at=view.taken_at)
            case ServiceFaultKind.EMPTY, OverlayView():
                return replace(view, classes=(), slots=())
            case ServiceFaultKind.PARTIAL, OverlayView():
                return replace(
                    view, slots=tuple(s for s in view.slots if self._shows(s.drone_id, fault))
                )
            case _, OverlayView():
                return view
            case ServiceFaultKind.EMPTY, _:
                return replace(view, drones={})
            case ServiceFaultKind.PARTIAL, _:
                return replace(
                    view, drones={d: r for d, r in view.drones.items() if self._shows(d, fault)}
                )
            case ServiceFaultKind.FREE_WRONG, _:
                (types,) = (
                    each.types for each in self._scenario.facilities if each.name == self.name
                )
                return replace(view, free={kind.name: int(fault.amount) for kind in types})
            case _:
                unknown = {
                    d: replace(r, state=RemoteState.UNKNOWN, end=None)
                    for d, r in view.drones.items()
                }
                return replace(view, drones=unknown)

    def _shows(self, drone_id: str, fault: ServiceFault) -> bool:
        return rng_for(self.seed, "hidden", fault.from_s, drone_id).random() >= fault.amount


async def _never() -> NoReturn:
    """No answer, ever: only the caller's deadline ends it."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody holds was fulfilled")


def _carry_out_unheard(carry_out: Callable[[], object]) -> None:
    """Carry out an order whose answer nobody will read."""
    with suppress(AdapterError):
        carry_out()
