"""Faults of services and hardware as data, and the network on which calls meet them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, TypeVar

from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import Fault, FaultKind, OrderOutcome, OrderResult
from provisioner.simulator.loop import Draw, VirtualClock, draw_for, rng_for

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


VIEW_FAULTS = frozenset(
    {
        ServiceFaultKind.EMPTY,
        ServiceFaultKind.PARTIAL,
        ServiceFaultKind.STALE,
        ServiceFaultKind.FREE_WRONG,
        ServiceFaultKind.UNKNOWN_STATES,
    }
)
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
        receipts = await self._with_fault(carry_out, latency_s, fault)
        if fault is not None and fault.kind is ServiceFaultKind.REPLY_TORN:
            return [self._partial_reply(receipt, fault) for receipt in receipts]
        return receipts

    async def ask(self, verb: str, answer: Callable[[], T]) -> T:
        """Make a call that changes nothing."""
        fault, latency_s = self._next(verb)
        return await self._with_fault(answer, latency_s, fault)

    def _next(self, verb: str) -> tuple[ServiceFault | None, float]:
        """Return the first fault that hits the next call, if any, and the latency of that call."""
        self._calls += 1
        latency_s = draw_for(self._latency, self.seed, "latency", self.name, self._calls)
        now_s = asyncio.get_running_loop().time()
        for index, fault in enumerate(self._service_faults):
            if fault.covers(self.name, verb, now_s) and (
                fault.chance >= 1.0
                or rng_for(self.seed, "spell", index, self.name, self._calls).random() < fault.chance
            ):
                self._faults_met[fault.kind] += 1
                return fault, latency_s
        return None, latency_s

    async def _exchange(self, carry_out: Callable[[], T], latency_s: float) -> T:
        if not latency_s:
            return carry_out()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def answer(fulfil: Callable[[V], None], value: V) -> None:
            if not reply.done():
                fulfil(value)

        def arrive() -> None:
            try:
                loop.call_later(latency_s / 2, answer, reply.set_result, carry_out())
            except AdapterError as error:
                loop.call_later(latency_s / 2, answer, reply.set_exception, error)

        loop.call_later(latency_s / 2, arrive)
        return await reply

    async def _with_fault(self, carry_out: Callable[[], T], latency_s: float, fault: ServiceFault | None) -> T:
        if fault is None:
            return await self._exchange(carry_out, latency_s)
        match fault.kind:
            case ServiceFaultKind.SLOW:
                return await self._exchange(carry_out, latency_s + fault.amount)
            case ServiceFaultKind.TWICE:
                asyncio.get_running_loop().call_later(latency_s + fault.amount, _carry_out_unheard, carry_out)
                return await self._exchange(carry_out, latency_s)
            case ServiceFaultKind.LATE:
                asyncio.get_running_loop().call_later(fault.amount, _carry_out_unheard, carry_out)
                await _never()
            case ServiceFaultKind.REPLY_HANGS:
                asyncio.get_running_loop().call_later(latency_s / 2, _carry_out_unheard, carry_out)
                await _never()
            case ServiceFaultKind.REPLY_LOST:
                await self._exchange(carry_out, latency_s)
                raise OutcomeUnknownError(f"{self.name}: connection lost before the answer")
            case ServiceFaultKind.HANG | ServiceFaultKind.ORDER_HANGS:
                await _never()
            case ServiceFaultKind.REPLY_TORN:
                return await self._exchange(carry_out, latency_s)
            case refusing:
                await asyncio.sleep(latency_s)
                raise _error(self.name, refusing)

    def _partial_reply(self, receipt: OrderResult, fault: ServiceFault) -> OrderResult:
        if rng_for(self.seed, "torn", self._calls, receipt.drone_id).random() >= fault.amount:
            return receipt
        error = Fault(FaultKind.UNKNOWN, "the answer was torn", VirtualClock().now())
        return replace(receipt, answer=OrderOutcome.UNKNOWN, remote_id="", fault=error)


def _error(name: str, kind: ServiceFaultKind) -> Exception:
    match kind:
        case ServiceFaultKind.DOWN:
            return UnavailableError(f"{name}: no route to host")
        case ServiceFaultKind.DENIED:
            return AuthError(f"{name}: token expired")
        case ServiceFaultKind.QUOTA:
            return RejectedError(f"{name}: quota exceeded", FaultKind.QUOTA)
        case ServiceFaultKind.CAPACITY:
            return RejectedError(f"{name}: no valid host was found", FaultKind.CAPACITY)
        case ServiceFaultKind.THROTTLED:
            return RejectedError(f"{name}: too many requests", FaultKind.THROTTLED)
        case ServiceFaultKind.ORDER_LOST:
            return OutcomeUnknownError(f"{name}: connection reset while sending")
        case _:
            return KeyError(f"{name}: an adapter's own mistake ({kind})")


async def _never() -> NoReturn:
    """No answer, ever: only the caller's deadline ends it."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody holds was fulfilled")


def _carry_out_unheard(carry_out: Callable[[], object]) -> None:
    """Carry out an order whose answer nobody will read."""
    with suppress(AdapterError):
        carry_out()
