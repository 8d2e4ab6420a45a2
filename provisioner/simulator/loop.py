"""Virtual time: an asyncio event loop whose clock jumps to the next timer instead of waiting for it; random durations.

Everything that asyncio builds on ``call_at`` works as always (``sleep``, ``timeout``,
``TaskGroup``, ``wait``); nothing that needs the outside world does (sockets, threads, child
processes). Callbacks run in the same order in every run.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from provisioner.interfaces import AdapterError
from provisioner.values import T, frozen

V = TypeVar("V")
Ts = TypeVarTuple("Ts")

TURNS_WITHOUT_TIME = 1_000_000
"""So many turns of the loop at one instant are taken for an endless loop."""


class DeadlockError(RuntimeError):
    """Every task waits and no timer is set: virtual time has nowhere to go. The message names the tasks."""


class LivelockError(RuntimeError):
    """Tasks keep each other busy without ever letting time pass. The message names the tasks."""


class OutsideWorldError(RuntimeError):
    """Simulated code tried real input or output: a thread, a socket, a child process."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time, beginning at 0 s. Timers for one instant go off in the order they were set in."""

    # asyncio has these; its type stubs do not.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self, start_epoch: float = 0.0) -> None:
        super().__init__()
        self.start_epoch = start_epoch
        self._now_s = 0.0
        self._agenda: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0
        self._turns = 0

    def time(self) -> float:
        return self._now_s

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heappush(self._agenda, (when, self._timers_set, timer))
        return timer

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """One turn of the loop: all that is due. If nothing is, the clock jumps to the next timer."""
        ready = self._ready
        agenda = self._agenda
        while agenda and agenda[0][2].cancelled():
            heappop(agenda)
        self._turns += 1
        if not (ready or self._stopping or agenda):
            raise DeadlockError(
                f"nothing will ever happen again at {self._now_s:.3f} s; {self._waiting()}"
            )
        if not (ready or self._stopping or agenda[0][0] <= self._now_s):
            self._turns = 0
            self._now_s = agenda[0][0]
        elif self._turns > TURNS_WITHOUT_TIME:
            self._turns = 0  # the loop is still to be cleared away
            raise LivelockError(f"time stands still at {self._now_s:.3f} s; {self._waiting()}")
        while agenda and agenda[0][0] <= self._now_s:
            ready.append(heappop(agenda)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _waiting(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        return f"waiting: {'; '.join(map(repr, tasks)) or 'no task at all'}"

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise OutsideWorldError(f"no threads in virtual time: {func!r}")

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run on an exception in a timer's callback: it is a fault of the simulator."""
        error = context.get("exception")
        if error is not None and "handle" in context:
            raise error
        super().call_exception_handler(context)

    def _write_to_self(self) -> None:
        """Nothing ever sleeps, so nothing needs waking (asyncio's handler of Ctrl-C asks for it)."""


def now_s() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


def at(when_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_at(when_s, callback, *args)


def after(delay_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, callback, *args)


def start_epoch() -> float:
    """Return the begin of the running virtual loop, in seconds since the epoch."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "a virtual clock shows the time of a virtual loop"
    return loop.start_epoch


def now() -> float:
    """Return the time of the running virtual loop, in seconds since the epoch."""
    return start_epoch() + now_s()


class VirtualClock:
    """The controller's clock in a simulation."""

    def now(self) -> float:
        return now()

    def drift_s(self) -> float:
        return 0.0

    def doubted(self) -> bool:
        return False

    def due_s(self) -> float:
        return 0.0

    def settle(self) -> None:
        return None


def run_virtual(coro: Coroutine[Any, Any, T], *, start_epoch: float = 0.0) -> T:
    """Run ``coro`` to its end in virtual time; :class:`VirtualClock` begins at ``start_epoch``.

    Raises DeadlockError, LivelockError, OutsideWorldError, and whatever ``coro`` raises.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start_epoch)) as runner:
        return runner.run(coro)


def rng_for(seed: int, *key: object) -> Random:
    """Return a generator of random numbers for ``key``: the same in every process and every run.

    A key names no class, method or setting, so that a rename changes no draw.
    """
    return Random("/".join(map(str, (seed, *key))))


@frozen
class Fixed:
    """Always ``value_s``."""

    value_s: float

    @property
    def median_s(self) -> float:
        return self.value_s

    def times(self, factor: float) -> Fixed:
        return Fixed(self.value_s * factor)

    def draw(self, rng: Random) -> float:
        return self.value_s


@frozen
class Uniform:
    """Anything from ``low_s`` to ``high_s``."""

    low_s: float
    high_s: float

    @property
    def median_s(self) -> float:
        return (self.low_s + self.high_s) / 2

    def times(self, factor: float) -> Uniform:
        return Uniform(self.low_s * factor, self.high_s * factor)

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.low_s, self.high_s)


@frozen
class LogNormal:
    """Half of the draws below ``median_s``; ``sigma`` is that of the logarithm, ``most_s`` cuts the tail."""

    median_s: float
    sigma: float
    most_s: float = math.inf

    def times(self, factor: float) -> LogNormal:
        return LogNormal(max(1e-3, self.median_s * factor), self.sigma, self.most_s * factor)

    def draw(self, rng: Random) -> float:
        return min(self.most_s, rng.lognormvariate(math.log(self.median_s), self.sigma))


Draw = Fixed | Uniform | LogNormal
"""A distribution of durations in seconds."""
AT_ONCE = Fixed(0.0)


class Network:
    """Calls to one part of the world (``name``: a site or the overlay), each with a round-trip time of its own."""

    def __init__(self, name: str, latency: Draw, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.calls = 0
        self._latency = latency

    def latency_s(self) -> float:
        """Return the round-trip time of the next call; a fixed one needs no generator."""
        self.calls += 1
        if isinstance(self._latency, Fixed):
            return self._latency.value_s
        return self._latency.draw(rng_for(self.seed, "latency", self.name, self.calls))

    async def call(self, verb: str, carry_out: Callable[[], T]) -> T:
        """Return the result of ``carry_out`` at the arrival of the call; tests have calls that fail by ``verb``."""
        return await self.exchange(carry_out, self.latency_s())

    async def exchange(self, carry_out: Callable[[], T], latency_s: float) -> T:
        """Carry out a call on its arrival; cancelling the caller does not revoke it."""
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
