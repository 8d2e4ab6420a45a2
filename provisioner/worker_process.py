"""One blocking library in a process of its own: calls with deadlines, and a kill when one passes.

A library that keeps the interpreter lock while it waits on the network (the HTCondor bindings do) would stop the event
loop even from a thread. Here it lives in a child, started with ``python -m provisioner.worker_process`` at the first
call:

    pool = WorkerProcess("adapters.condor.pool:open_pool", "pool.example.org:9618")
    view = await pool.call("poll", deadline_s=20.0)

``open_pool("pool...")`` runs in the child and returns the object whose methods are called, one at a time. Arguments and
results are plain picklable values. The pickles go through two pipes, each with its length in front; the child holds no
other line to us, and the kernel kills it when this process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import os
import pickle
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from provisioner.interfaces import AdapterError, UnavailableError
from provisioner.model import FaultKind

LAST_WORDS = 2000
"""Characters of the child's standard error that are reported when it crashes."""
DYING_S = 5.0
"""A child that has closed its answers has this long to end by itself, so that its exit code is its own."""
LOG_LIMIT = 1 << 20
"""Its standard error goes to an unlinked file, emptied beyond this many bytes."""

_LENGTH = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1


class WorkerProcess:
    """A child process around one blocking object, started at the first call. Calls run one after the other."""

    def __init__(
        self, target: str, *args: Any, env: Mapping[str, str] | None = None, python: str = ""
    ) -> None:
        """Prepare a child that calls ``target`` (``module:callable``) with ``args``.

        ``env``: its whole environment. ``python``: another interpreter (3.11 or newer), for a
        library that only that one has; it sees the two packages of this module and of ``target``,
        which must need nothing else.
        """
        self._target = target
        self._args = args
        self._python = python
        self._env = dict(os.environ if env is None else env)
        self._process: asyncio.subprocess.Process | None = None
        self._log: IO[bytes] | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the running child; None while there is none."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def call(self, name: str, *args: Any, deadline_s: float) -> Any:
        """Return ``object.name(*args)`` of the child. Raises what the call raised if that is an :class:`AdapterError`.

        Raises :class:`UnavailableError` if it raised anything else, crashed, or took longer than
        ``deadline_s``. The deadline includes the wait for its turn and the start of the child; the
        child is then killed and started again at the next call.
        """
        try:
            async with asyncio.timeout(deadline_s), self._turn:
                error, result = await self._ask(name, args)
        except TimeoutError:
            raise UnavailableError(f"{name}: no answer within {deadline_s:g} s") from None
        if error is not None:
            raise error
        return result

    async def close(self) -> None:
        """End the child, if one runs. A later call starts another."""
        async with self._turn:
            await self._end()

    async def _ask(self, name: str, args: Sequence[Any]) -> tuple[AdapterError | None, Any]:
        """Return the answer to one question; a deadline, a cancellation or a crash ends the child."""
        answered = False
        try:
            process = await self._running()
            assert process.stdin and process.stdout
            process.stdin.write(_packed((name, args)))
            await process.stdin.drain()
            (size,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
            answer: tuple[AdapterError | None, Any] = pickle.loads(
                await process.stdout.readexactly(size)
            )
            answered = True
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._end(DYING_S)
            raise UnavailableError(
                f"{name}: the child process ended ({_ending(code)}): {self._last_output()}"
            ) from None
        except OSError as error:
            raise UnavailableError(
                f"{name}: the child process cannot be started: {error.strerror or error}"
            ) from None
        finally:
            if not answered:
                await self._end()
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            if self._log is not None and os.fstat(self._log.fileno()).st_size > LOG_LIMIT:
                self._log.truncate(0)
            return self._process
        if self._log is not None:
            self._log.close()
        self._log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as the child
        path = _homes(self._target) if self._python else [p for p in sys.path if p]
        self._process = await asyncio.create_subprocess_exec(
            self._python or sys.executable,
            "-P",
            "-m",
            "provisioner.worker_process",
            str(os.getpid()),
            self._target,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            env=self._env | {"PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,
        )
        assert self._process.stdin
        self._process.stdin.write(_packed(self._args))
        return self._process

    async def _end(self, wait_s: float = 0.0) -> int | None:
        """Kill the child and all that it started, and return its exit code.

        It has ``wait_s`` in which it may end by itself.
        """
        process = self._process
        self._process = None
        if process is None:
            return None
        # The number of one that ended between two calls may be another's by now; with a wait it
        # ended within this one.
        runs = wait_s > 0 or process.returncode is None
        try:
            # to signal one that has just died would collect it before asyncio does, and lose its
            # exit code
            if wait_s:
                async with asyncio.timeout(wait_s):
                    await process.wait()
        except TimeoutError:
            pass
        finally:
            if runs:  # it leads a process group of its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.stdin:
            process.stdin.close()
        return await process.wait()

    def _last_output(self) -> str:
        assert self._log is not None
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), LAST_WORDS, max(0, size - LAST_WORDS)).decode(
            errors="replace"
        )
        return (
            " / ".join(line.strip() for line in text.splitlines() if line.strip())
            or "no last words"
        )


def _homes(target: str) -> list[str]:
    specs = [
        importlib.util.find_spec(name.partition(".")[0])
        for name in (__name__, target.partition(":")[0])
    ]
    origins = [
        os.path.abspath(spec.origin)
        for spec in specs
        if spec is not None and spec.origin is not None
    ]
    return sorted({os.path.dirname(os.path.dirname(origin)) for origin in origins})


def _packed(value: object) -> bytes:
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def _ending(code: int | None) -> str:
    if code is None:
        return "no exit code"
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


# ------------------------------------------------------------------------------------------------------
# in the child


def _take(pipe: IO[bytes]) -> Any:
    """Return the next value from the parent. struct.error when it has closed its end."""
    (size,) = _LENGTH.unpack(pipe.read(_LENGTH.size))
    return pickle.loads(pipe.read(size))


def _answer(name: str, call: Callable[[], Any]) -> bytes:
    """Return the packed result of one call, or the error to raise in the parent, which may not know others of ours."""
    try:
        return _packed((None, call()))
    except AdapterError as error:
        known = next(
            kind for kind in type(error).__mro__ if kind.__module__ == AdapterError.__module__
        )
        return _packed((known(str(error), error.kind), None))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        message = f"{name}: {type(error).__name__}: {error} ({place})"
        return _packed((UnavailableError(message, FaultKind.UNKNOWN), None))


def main() -> None:
    """Serve the parent until it closes the pipe."""
    parent = int(sys.argv[1])
    target = sys.argv[2]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has died already
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the parent
    questions = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints is not an answer
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    args = _take(questions)
    with contextlib.suppress(EOFError, struct.error, BrokenPipeError):
        served: Any = None
        while True:
            method, method_args = _take(questions)

            def carry_out(method: str = method, method_args: Sequence[Any] = method_args) -> Any:
                nonlocal served
                if served is None:
                    module, _, name = target.partition(":")
                    served = getattr(importlib.import_module(module), name)(*args)
                return getattr(served, method)(*method_args)

            answers.write(_answer(method, carry_out))
            answers.flush()


if __name__ == "__main__":
    main()
