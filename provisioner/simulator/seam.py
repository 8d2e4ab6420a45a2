"""The wire between controller and world: calls take their time here, and are lost, delayed, doubled or refused.

An order travels on its own: once sent, it is carried out even if the caller is cancelled or killed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol, TypeVar

from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import Fault, FaultKind, OrderOutcome, OrderResult
from provisioner.simulator.draws import Draw, drawn, keyed
from provisioner.simulator.faults import LIES, Spell, Trouble, struck
from provisioner.simulator.loop import VirtualClock

T = TypeVar("T")


class Lying(Protocol[T]):
    """Turns a true view into what a spell makes of it."""

    def __call__(self, view: T, spell: Spell) -> T: ...


class Wire:
    """Calls to one part of the world (``name``: a site or the overlay)."""

    def __init__(self, name: str, seed: int, latency: Draw, spells: Sequence[Spell], met: Counter[Trouble]) -> None:
        self.name = name
        self.seed = seed
        self._latency = latency
        self._spells = spells
        self._met = met
        self._calls = 0

    async def poll(self, see: Callable[[], T], lie: Lying[T]) -> T:
        """What ``see`` returns when the question arrives, bent by ``lie`` where a spell wants it."""
        spell, latency_s = self._next("poll")
        if spell is not None and spell.trouble in LIES:
            return lie(await self._exchange(see, latency_s), spell)
        return await self._troubled(see, latency_s, spell)

    async def act(self, verb: str, carry_out: Callable[[], Sequence[OrderResult]]) -> Sequence[OrderResult]:
        """Have orders carried out. Raises as the seams say; hangs where the answer is lost without a word."""
        spell, latency_s = self._next(verb)
        receipts = await self._troubled(carry_out, latency_s, spell)
        if spell is not None and spell.trouble is Trouble.REPLY_TORN:
            return [self._torn(receipt, spell) for receipt in receipts]
        return receipts

    async def ask(self, verb: str, answer: Callable[[], T]) -> T:
        """A question that changes nothing."""
        spell, latency_s = self._next(verb)
        return await self._troubled(answer, latency_s, spell)

    def _next(self, verb: str) -> tuple[Spell | None, float]:
        self._calls += 1
        now_s = asyncio.get_running_loop().time()
        latency_s = drawn(self._latency, self.seed, "latency", self.name, self._calls)
        spell = struck(self.seed, self._spells, self.name, verb, self._calls, now_s) if self._spells else None
        if spell is not None:
            self._met[spell.trouble] += 1
        return spell, latency_s

    async def _exchange(self, carry_out: Callable[[], T], latency_s: float) -> T:
        if not latency_s:
            return carry_out()
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            try:
                answer = carry_out()
            except AdapterError as error:
                loop.call_later(latency_s / 2, _fail, reply, error)
            else:
                loop.call_later(latency_s / 2, _tell, reply, answer)

        loop.call_later(latency_s / 2, arrive)
        return await reply

    async def _troubled(self, carry_out: Callable[[], T], latency_s: float, spell: Spell | None) -> T:
        if spell is None:
            return await self._exchange(carry_out, latency_s)
        match spell.trouble:
            case Trouble.SLOW:
                return await self._exchange(carry_out, latency_s + spell.amount)
            case Trouble.TWICE:
                asyncio.get_running_loop().call_later(latency_s + spell.amount, _unheard, carry_out)
                return await self._exchange(carry_out, latency_s)
            case Trouble.LATE:
                asyncio.get_running_loop().call_later(spell.amount, _unheard, carry_out)
                await _never()
            case Trouble.REPLY_HANGS:
                asyncio.get_running_loop().call_later(latency_s / 2, _unheard, carry_out)
                await _never()
            case Trouble.REPLY_LOST:
                await self._exchange(carry_out, latency_s)
                raise OutcomeUnknownError(f"{self.name}: connection lost before the answer")
            case Trouble.HANG | Trouble.ORDER_HANGS:
                await _never()
            case Trouble.REPLY_TORN:
                return await self._exchange(carry_out, latency_s)
            case refusing:
                await asyncio.sleep(latency_s)
                raise _error(self.name, refusing)

    def _torn(self, receipt: OrderResult, spell: Spell) -> OrderResult:
        if keyed(self.seed, "torn", self._calls, receipt.drone_id).random() >= spell.amount:
            return receipt
        fault = Fault(FaultKind.UNKNOWN, "the answer was torn", VirtualClock().now())
        return replace(receipt, answer=OrderOutcome.UNKNOWN, remote_id="", fault=fault)


def _error(name: str, trouble: Trouble) -> Exception:
    match trouble:
        case Trouble.DOWN:
            return UnavailableError(f"{name}: no route to host")
        case Trouble.DENIED:
            return AuthError(f"{name}: token expired")
        case Trouble.QUOTA:
            return RejectedError(f"{name}: quota exceeded", FaultKind.QUOTA)
        case Trouble.CAPACITY:
            return RejectedError(f"{name}: no valid host was found", FaultKind.CAPACITY)
        case Trouble.THROTTLED:
            return RejectedError(f"{name}: too many requests", FaultKind.THROTTLED)
        case Trouble.ORDER_LOST:
            return OutcomeUnknownError(f"{name}: connection reset while sending")
        case _:
            return KeyError(f"{name}: an adapter's own mistake ({trouble})")


async def _never() -> NoReturn:
    """No answer, ever: only the caller's deadline ends it."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody holds was fulfilled")


def _unheard(carry_out: Callable[[], object]) -> None:
    """Carry out an order whose answer nobody will read."""
    try:
        carry_out()
    except AdapterError:
        return


def _tell(reply: asyncio.Future[T], answer: T) -> None:
    if not reply.done():
        reply.set_result(answer)


def _fail(reply: asyncio.Future[T], error: AdapterError) -> None:
    if not reply.done():
        reply.set_exception(error)
