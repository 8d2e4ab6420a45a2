"""Processes of the benchmark: clients on the GPU, and a control daemon of MPS of our own."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import client
from benchmarks.gpu.nvml import Nvml

CLIENT = Path(client.__file__)
LIMIT_S = 120.0
"""Longest wait for a process to answer: a driver may hang."""
MPS_PLACES = "/usr/bin:/usr/local/nvidia/bin:/opt/nvidia/bin"
THREADS_PER_MULTIPROCESSOR = 2048

Answer = dict[str, Any]
Env = Mapping[str, str] | None


class Skipped(Exception):
    """A step that cannot run here; the text says why."""


def mps_control() -> str:
    """Return the path of the control program of MPS.

    Raises:
        Skipped: this host has none.
    """
    program = shutil.which(
        "nvidia-cuda-mps-control", path=f"{os.environ.get('PATH', '')}:{MPS_PLACES}"
    )
    if not program:
        raise Skipped("nvidia-cuda-mps-control is not on this host")
    return program


class Client:
    """A process of ``client.py``."""

    def __init__(self, env: Mapping[str, str], *words: object) -> None:
        command = [sys.executable, str(CLIENT), *map(str, words)]
        pipes: Answer = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=dict(env), text=True, **pipes)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def hear(self, within_s: float = LIMIT_S) -> Answer:
        """Return its next line; a code of -1 if there is none."""
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty:
            return {"code": -1, "why": f"no answer within {within_s:g} s"}
        return (
            dict(json.loads(line))
            if line
            else {"code": -1, "why": f"ended with status {self.process.wait(LIMIT_S)}"}
        )

    def go(self) -> None:
        assert self.process.stdin
        with suppress(BrokenPipeError):  # it has ended, and said why
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it
            self.process.wait(LIMIT_S)


@dataclass(frozen=True, slots=True)
class Load:
    """A training: the shares of its run alone and of the GPU that its kernels fill, and their time in each step."""

    name: str
    duty: float
    width: float
    gpu_ms: float = 5.0

    def words(self, rig: Rig, seconds: float, mib: int = 0) -> tuple[object, ...]:
        """Return the arguments of ``client.py``."""
        rounds = rig.rounds(self.width, self.gpu_ms)
        size = ("--blocks", rig.blocks(self.width), "--rounds", rounds, "--mib", mib)
        return (
            "train",
            *size,
            "--host-ms",
            self.gpu_ms * (1 / self.duty - 1),
            "--seconds",
            seconds,
        )


class Rig:
    """One GPU and the clients on it."""

    def __init__(self, index: int) -> None:
        self.nvml = Nvml(index)
        self._described: dict[int, Answer] = {}
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")
        }
        # A directory without a daemon: one of the site would take our clients otherwise.
        self.env = outside | {
            "CUDA_VISIBLE_DEVICES": self.nvml.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
        }

    @contextmanager
    def clients(self, each: list[tuple[object, ...]], env: Env = None) -> Iterator[list[Client]]:
        """Start clients; kill those that are left at the end."""
        started = [Client(env or self.env, *words) for words in each]
        try:
            yield started
        finally:
            for one in started:
                one.kill()

    def ask(self, *words: object, env: Env = None) -> Answer:
        """Return the first line of a client."""
        with self.clients([words], env) as [one]:
            return one.hear()

    @contextmanager
    def training(
        self, loads: Sequence[Load], seconds: float, env: Env = None
    ) -> Iterator[list[Client]]:
        """Start trainings at one time.

        Raises:
            Skipped: one does not start.
        """
        with self.clients([load.words(self, seconds) for load in loads], env) as clients:
            for one in clients:
                if "ready" not in (answer := one.hear()):
                    raise Skipped(f"a training does not start: {answer['why']}")
            for one in clients:
                one.go()
            yield clients

    def described(self, blocks: int = 1) -> Answer:
        """Return the GPU's size, and its speed with so many blocks.

        Raises:
            Skipped: CUDA does not work here.
        """
        if blocks not in self._described:
            found = self.ask("describe", "--blocks", blocks)
            if "rounds_per_ms" not in found:
                raise Skipped(f"CUDA does not work on this GPU: {found['why']}")
            self._described[blocks] = found
        return self._described[blocks]

    def blocks(self, width: float) -> int:
        """Return the blocks that fill this share of the GPU."""
        threads = int(self.described()["multiprocessors"]) * THREADS_PER_MULTIPROCESSOR
        return max(1, round(width * threads / client.THREADS))

    def rounds(self, width: float, ms: float) -> int:
        """Return the rounds of a kernel of this width that take so long alone."""
        rounds = round(ms * float(self.described(self.blocks(width))["rounds_per_ms"]))
        return min(max(1, rounds), (1 << 32) - 1)

    @contextmanager
    def mps(self, limit_mib: int = 0) -> Iterator[Mps]:
        """Run a control daemon of our own, and a server that has had a client.

        ``limit_mib``: default limit of memory, which a server reads, and writes to its log, only when it starts.

        Raises:
            Skipped: there is no MPS here, or it does not work.
        """
        program = mps_control()
        with tempfile.TemporaryDirectory(
            prefix="mps-", dir="/tmp", ignore_cleanup_errors=True
        ) as directory:
            # (A path of a socket is short.)
            places = {"CUDA_MPS_PIPE_DIRECTORY": directory, "CUDA_MPS_LOG_DIRECTORY": directory}
            daemon = Mps(program, Path(directory), self.env | places)
            status, said = daemon.call("-d")
            if status:
                raise Skipped(f"the control daemon of MPS does not start: {said or status}")
            if limit_mib:
                daemon.tell(f"set_default_device_pinned_mem_limit 0 {limit_mib}M")
            try:
                found = self.ask("describe", env=daemon.env)
                if "rounds_per_ms" not in found or not daemon.servers():
                    raise Skipped(
                        f"MPS does not work: {found.get('why') or 'no server'}; {daemon.log()}"
                    )
                yield daemon
            finally:
                daemon.tell("quit -t 5")


@dataclass(frozen=True, slots=True)
class Mps:
    """A control daemon of MPS; clients with :attr:`env` use it."""

    program: str
    directory: Path
    env: Mapping[str, str]

    def call(self, *words: str, say: str = "") -> tuple[int, str]:
        """Run the control program; return its exit status and what it prints."""
        # Its daemon may keep the pipes open, so the output goes to a file.
        out = self.directory / "said"
        with out.open("w") as file:
            command = ["timeout", "60", self.program, *words]
            how: Answer = {"env": dict(self.env), "stdout": file, "stderr": file}
            done = subprocess.run(command, input=say, text=True, check=False, **how)
        return done.returncode, out.read_text().strip()

    def tell(self, words: str) -> str:
        """Give the daemon a command; return its reply."""
        return self.call(say=f"{words}\n")[1]

    def servers(self) -> list[int]:
        return [int(word) for word in self.tell("get_server_list").split() if word.isdigit()]

    def terminate(self, pid: int) -> str:
        """End the contexts of a client in order."""
        return "; ".join(
            self.tell(f"terminate_client {server} {pid}") or "done" for server in self.servers()
        )

    def log(self, word: str = "") -> str:
        """Return the last line of the daemon's logs that has a word."""
        files = [self.directory / name for name in ("control.log", "server.log")]
        lines = [
            line
            for file in files
            if file.exists()
            for line in file.read_text(errors="replace").splitlines()
        ]
        return next(
            (line for line in reversed(lines) if word.lower() in line.lower()),
            "no such line in its logs",
        )
