"""Faults of services and hardware as data, and the network on which calls meet them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, TypeVar

from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import Fault, FaultKind, OrderOutcome, OrderResult
from provisioner.simulator.loop import Draw, VirtualClock, after, draw_for, now_s, rng_for

if TYPE_CHECKING:
    from provisioner.simulator.results import Conditions

OVERLAY = "overlay"
"""Name of the overlay in ``where``; sites go by their names."""


class ServiceFaultKind(StrEnum):
    """Fault of one call. *Amount* means :attr:`ServiceFault.amount`."""

    # refused or broken, nothing done
    DOWN = "down"
    DENIED = "denied"
    QUOTA = "quota"
    CAPACITY = "capacity"
    THROTTLED = "throttled"
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


VIEW_FAULTS = frozenset(map(ServiceFaultKind, ("empty", "partial", "stale", "free-wrong", "unknown-states")))
ACTING_CALLS = frozenset({"start", "stop", "drain", "bootstrap"})


@dataclass(frozen=True, slots=True)
class ServiceFault:
    """Calls of ``verb`` to ``where`` meet this fault, each with ``chance``, from ``from_s`` until ``to_s``."""

    kind: ServiceFaultKind
    where: str = "*"
    """A site, :data:`OVERLAY`, or ``*``."""
    verb: str = "*"
    """``poll``, ``start``, ``stop``, ``drain``, ``bootstrap``, ``act`` (any of the last four), or ``*``."""
    from_s: float = 0.0
    to_s: float = math.inf
    chance: float = 1.0
    amount: float = 0.0

    def covers(self, where: str, verb: str, now_s: float) -> bool:
        return (
            self.from_s <= now_s < self.to_s
            and self.where in ("*", where)
            and (self.verb in ("*", verb) or (self.verb == "act" and verb in ACTING_CALLS))
        )


class HardwareFaultKind(StrEnum):
    NODE_FAILS = "node-fails"
    """A node takes its drones with it and is away for ``for_s``."""
    DOWNTIME = "downtime"
    """The whole site is away for ``for_s``; announced ``notice_s`` before."""
    NO_NEGOTIATION = "no-negotiation"
    """The pool makes no matches for ``for_s``."""


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """Fault of hardware or pool at ``at_s``, independent of calls."""

    kind: HardwareFaultKind
    at_s: float
    for_s: float
    where: str = OVERLAY
    node: int = 0
    notice_s: float = 0.0


T = TypeVar("T")
V = TypeVar("V")

_REFUSALS: Mapping[ServiceFaultKind, tuple[Callable[..., Exception], str, tuple[FaultKind, ...]]] = {
    ServiceFaultKind.DOWN: (UnavailableError, "no route to host", ()),
    ServiceFaultKind.DENIED: (AuthError, "token expired", ()),
    ServiceFaultKind.QUOTA: (RejectedError, "quota exceeded", (FaultKind.QUOTA,)),
    ServiceFaultKind.CAPACITY: (RejectedError, "no valid host was found", (FaultKind.CAPACITY,)),
    ServiceFaultKind.THROTTLED: (RejectedError, "too many requests", (FaultKind.THROTTLED,)),
    ServiceFaultKind.ORDER_LOST: (OutcomeUnknownError, "connection reset while sending", ()),
}
"""Errors, and what they say, of the faults that leave nothing done."""


class Network:
    """Calls to one part of the world (``name``: a site or the overlay)."""

    def __init__(self, name: str, latency: Draw, conditions: Conditions) -> None:
        self.name = name
        self.seed = conditions.seed
        self._latency = latency
        self._service_faults = conditions.service_faults
        self._faults_met = conditions.metrics.faults_met
        self._calls = 0

    async def poll(self, view: Callable[[], T], distort: Callable[[T, ServiceFault], T]) -> T:
        """Return the view at the arrival of the call, distorted by ``distort`` if a fault says so."""
        fault, latency_s = self._next("poll")
        if fault is not None and fault.kind in VIEW_FAULTS:
            return distort(await self._exchange(view, latency_s), fault)
        return await self._with_fault(view, latency_s, fault)

    async def act(self, verb: str, carry_out: Callable[[], Sequence[OrderResult]]) -> Sequence[OrderResult]:
        """Have orders carried out; may raise an AdapterError, or never return."""
        fault, latency_s = self._next(verb)
        results = await self._with_fault(carry_out, latency_s, fault)
        if fault is not None and fault.kind is ServiceFaultKind.REPLY_TORN:
            return [self._partial_reply(result, fault) for result in results]
        return results

    async def ask(self, verb: str, answer: Callable[[], T]) -> T:
        """Make a call that changes nothing."""
        fault, latency_s = self._next(verb)
        return await self._with_fault(answer, latency_s, fault)

    def _next(self, verb: str) -> tuple[ServiceFault | None, float]:
        """Return the first fault that hits the next call, if any, and the latency of that call."""
        self._calls += 1
        latency_s = draw_for(self._latency, self.seed, "latency", self.name, self._calls)
        for index, fault in enumerate(self._service_faults):
            if fault.covers(self.name, verb, now_s()) and (
                fault.chance >= 1.0
                or rng_for(self.seed, "spell", index, self.name, self._calls).random() < fault.chance
            ):
                self._faults_met[fault.kind] += 1
                return fault, latency_s
        return None, latency_s

    async def _exchange(self, carry_out: Callable[[], T], latency_s: float) -> T:
        if not latency_s:
            return carry_out()
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def answer(fulfil: Callable[[V], None], value: V) -> None:
            if not reply.done():
                fulfil(value)

        def arrive() -> None:
            try:
                after(latency_s / 2, answer, reply.set_result, carry_out())
            except AdapterError as error:
                after(latency_s / 2, answer, reply.set_exception, error)

        after(latency_s / 2, arrive)
        return await reply

    async def _with_fault(self, carry_out: Callable[[], T], latency_s: float, fault: ServiceFault | None) -> T:
        if fault is None or fault.kind is ServiceFaultKind.REPLY_TORN:
            return await self._exchange(carry_out, latency_s)
        match fault.kind:
            case ServiceFaultKind.SLOW:
                return await self._exchange(carry_out, latency_s + fault.amount)
            case ServiceFaultKind.TWICE:
                after(latency_s + fault.amount, _carry_out_unheard, carry_out)
                return await self._exchange(carry_out, latency_s)
            case ServiceFaultKind.LATE:
                after(fault.amount, _carry_out_unheard, carry_out)
                return await _never()
            case ServiceFaultKind.REPLY_HANGS:
                after(latency_s / 2, _carry_out_unheard, carry_out)
                return await _never()
            case ServiceFaultKind.REPLY_LOST:
                await self._exchange(carry_out, latency_s)
                raise OutcomeUnknownError(f"{self.name}: connection lost before the answer")
            case ServiceFaultKind.HANG | ServiceFaultKind.ORDER_HANGS:
                return await _never()
            case kind:
                await asyncio.sleep(latency_s)
                if kind not in _REFUSALS:
                    raise KeyError(f"{self.name}: an adapter's own mistake ({kind})")
                error, words, more = _REFUSALS[kind]
                raise error(f"{self.name}: {words}", *more)

    def _partial_reply(self, result: OrderResult, fault: ServiceFault) -> OrderResult:
        if rng_for(self.seed, "torn", self._calls, result.drone_id).random() >= fault.amount:
            return result
        error = Fault(FaultKind.UNKNOWN, "the answer was torn", VirtualClock().now())
        return replace(result, answer=OrderOutcome.UNKNOWN, remote_id="", fault=error)


async def _never() -> NoReturn:
    """No answer, ever: only the caller's deadline ends it."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody holds was fulfilled")


def _carry_out_unheard(carry_out: Callable[[], object]) -> None:
    """Carry out an order whose answer nobody will read."""
    with suppress(AdapterError):
        carry_out()
