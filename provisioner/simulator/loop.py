"""Virtual time: an asyncio event loop whose clock jumps to the next timer instead of waiting for it.

Everything that asyncio builds on ``call_at`` works as always (``sleep``, ``timeout``, ``TaskGroup``, ``wait``); nothing
that needs the outside world does (sockets, threads, child processes): a simulation that reaches out is not one.
Callbacks run in the same order in every run, so the same program gives the same history.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
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
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
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
        ready, agenda = self._ready, self._agenda
        while agenda and agenda[0][2].cancelled():
            heappop(agenda)
        if ready or self._stopping:
            self._turn_without_time()
        elif not agenda:
            raise DeadlockError(f"nothing will ever happen again at {self._now_s:.3f} s; {_waiting(self)}")
        elif agenda[0][0] <= self._now_s:
            self._turn_without_time()
        else:
            self._turns, self._now_s = 0, agenda[0][0]
        while agenda and agenda[0][0] <= self._now_s:
            ready.append(heappop(agenda)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _turn_without_time(self) -> None:
        self._turns += 1
        if self._turns > TURNS_WITHOUT_TIME:
            self._turns = 0  # the loop is still to be cleared away
            raise LivelockError(f"time stands still at {self._now_s:.3f} s; {_waiting(self)}")

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
    """Set a timer of the running loop for a time."""
    return asyncio.get_running_loop().call_at(when_s, callback, *args)


def after(delay_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
    """Set a timer of the running loop for a time from now."""
    return asyncio.get_running_loop().call_later(delay_s, callback, *args)


class VirtualClock:
    """The controller's clock in a simulation: seconds since the epoch, by the running virtual loop."""

    def now(self) -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "a virtual clock shows the time of a virtual loop"
        return loop.start_epoch + loop.time()

    def drift_s(self) -> float:
        """Return 0: nobody sets this clock."""
        return 0.0

    def doubted(self) -> bool:
        return False

    def due_s(self) -> float:
        return 0.0

    def settle(self) -> None:
        return None


def run_virtual(coro: Coroutine[Any, Any, T], *, start_epoch: float = 0.0) -> T:
    """Run ``coro`` to its end in virtual time, as ``asyncio.run`` does in real time.

    ``start_epoch``: what :class:`VirtualClock` shows at the beginning, in seconds since the epoch. Raises
    :class:`DeadlockError`, :class:`LivelockError`, :class:`OutsideWorldError`, and whatever ``coro`` raises.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(start_epoch)) as runner:
        return runner.run(coro)


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    return f"waiting: {'; '.join(map(repr, tasks)) or 'no task at all'}"


def rng_for(seed: int, *key: object) -> Random:
    """Return a generator of random numbers for ``key``: the same in every process and every run.

    A key names no class, method or setting, so that a rename changes no draw.
    """
    return Random("/".join(map(str, (seed, *key))))


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``value_s``."""

    value_s: float

    def times(self, factor: float) -> Fixed:
        return Fixed(self.value_s * factor)

    def draw(self, rng: Random) -> float:
        return self.value_s

    @property
    def mostly_below_s(self) -> float:
        return self.value_s


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything from ``low_s`` to ``high_s``."""

    low_s: float
    high_s: float

    def times(self, factor: float) -> Uniform:
        return Uniform(self.low_s * factor, self.high_s * factor)

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.low_s, self.high_s)

    @property
    def mostly_below_s(self) -> float:
        return self.high_s


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Half of the draws below ``median_s``; ``sigma`` is that of the logarithm, ``most_s`` cuts the tail."""

    median_s: float
    sigma: float
    most_s: float = math.inf

    def times(self, factor: float) -> LogNormal:
        return LogNormal(max(1e-3, self.median_s * factor), self.sigma, self.most_s * factor)

    def draw(self, rng: Random) -> float:
        return min(self.most_s, rng.lognormvariate(math.log(self.median_s), self.sigma))

    @property
    def mostly_below_s(self) -> float:
        """Bound of 999 of 1000 draws."""
        return min(self.most_s, self.median_s * math.exp(3.1 * self.sigma))


Draw = Fixed | Uniform | LogNormal
"""A distribution of durations in seconds."""


def draw_for(draw: Draw, seed: int, *key: object) -> float:
    """Return the value of ``draw`` for ``key``; a fixed draw needs no generator."""
    return draw.value_s if isinstance(draw, Fixed) else draw.draw(rng_for(seed, *key))


AT_ONCE = Fixed(0.0)
