"""One attempt at one job: its process group, directory, environment, and how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters.embedded.guard import Guard, kill_group
from adapters.embedded.table import Claim

_TAIL_BYTES = 2048
_MESSAGE_LIMIT = 300
_NOT_OURS = ("PYTHONPATH",)
_CANNOT_RUN = 127


@dataclass(slots=True)
class Attempt:
    claim: Claim
    gpus: Mapping[str, int]
    directory: Path
    ends_at: float
    """Monotonic; the job's own walltime, infinite if it has none."""
    process: subprocess.Popen[bytes] | None = None
    """None: it could not be executed."""
    trouble: str = ""
    asked: bool = False
    """It was sent SIGTERM."""
    overran: bool = False
    cut: bool = False
    """Killed for no fault of its own: we leave, or it is not ours any more."""

    def ask_to_end(self) -> None:
        if self.process is not None and not self.asked:
            self.asked = True
            try:
                os.killpg(self.process.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it just ended; the next look at it says so

    def kill(self) -> None:
        if self.process is not None:
            kill_group(self.process.pid)

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def group(self) -> int:
        """Its process group; 0 if it never had one."""
        return self.process.pid if self.process is not None else 0

    @property
    def unfinished(self) -> bool:
        """It ended because of us, and would have gone on: it should run again."""
        return self.exit_code != 0 and not self.overran and (self.asked or self.cut)

    @property
    def exit_code(self) -> int:
        """As a shell tells it: 128 and the signal's number for a killed one."""
        if self.process is None:
            return _CANNOT_RUN
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    @property
    def message(self) -> str:
        if self.trouble or self.overran:
            return self.trouble or f"ran longer than its walltime of {self.claim.walltime_s:g} s"
        names = ("err", "out") if self.exit_code else ("out",)
        return next(filter(None, (_last_line(self.directory / name) for name in names)), "")


def begin(claim: Claim, gpus: Mapping[str, int], parent: Path, env: Mapping[str, str], guard: Guard) -> Attempt:
    """Run a job in ``parent/job-<id>.<attempt>``. What cannot be run is an attempt that ended with 127."""
    directory = parent / f"job-{claim.job_id}.{claim.attempt}"
    ends_at = time.monotonic() + claim.walltime_s if claim.walltime_s > 0 else float("inf")
    attempt = Attempt(claim, gpus, directory, ends_at)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        attempt.process = _execute(claim, gpus, directory, env, guard)
    except (OSError, ValueError, TypeError, AttributeError, subprocess.SubprocessError) as error:
        attempt.trouble = f"cannot be run: {error}"[:_MESSAGE_LIMIT]  # the row is the user's, and may hold anything
    return attempt


def _execute(
    claim: Claim, gpus: Mapping[str, int], directory: Path, env: Mapping[str, str], guard: Guard
) -> subprocess.Popen[bytes]:
    ours = {name: value for name, value in env.items() if name not in _NOT_OURS and not name.startswith("EMBEDDED_")}
    wanted = {str(name): str(value) for name, value in json.loads(claim.env).items()}
    tag = {"PROVISIONER_DRONE_ID": env["DRONE_ID"], "JOB_ID": str(claim.job_id), "JOB_GPU_MILLI": str(claim.gpu_milli)}
    with open(directory / "out", "wb") as out, open(directory / "err", "wb") as err:
        return subprocess.Popen(
            [str(word) for word in json.loads(claim.argv)],
            cwd=directory,
            env={**ours, **wanted, **tag, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=lambda: prepare(guard),
        )


def prepare(guard: Guard) -> None:
    """In the job's process: known to the guard first, then with the signals as a job expects them."""
    guard.begin_here()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _last_line(path: Path) -> str:
    """The last line of a job's output, made printable."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    cleaned = ("".join(c if c.isprintable() else " " for c in line).strip() for line in reversed(lines))
    return next(filter(None, cleaned), "")[:_MESSAGE_LIMIT]
