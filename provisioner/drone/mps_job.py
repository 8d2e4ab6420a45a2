"""A job under MPS as a child of this process: it ends like the job, and ends the job's clients before they are killed.

Arguments: the job's line of condor/mps/jobs, seconds from a job's notice to its kill,
nvidia-cuda-mps-control, and the job's command. A client whose process dies amid its work may take
those of its neighbours along; NVIDIA's way is ``terminate_client`` first. A job that would die of
the signal has its clients ended before it gets the signal. A job that catches it, to save its
state, keeps them until shortly before the end of its notice.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
TERMINATE_S = 3.0
"""Longest time for ending all clients of the job, which is taken from its notice."""
OWN = {
    "KILL",
    "STOP",
    "CHLD",
    "SEGV",
    "BUS",
    "FPE",
    "ILL",
    "TRAP",
    "SYS",
    "PIPE",
    "CONT",
    "TSTP",
    "TTIN",
    "TTOU",
}
"""Signals that are not for the job: those of the kernel, of a terminal, and what cannot be caught."""
FORWARDED = set(range(1, 32)) - {getattr(signal, f"SIG{name}") for name in OWN}


def ask(control: str, command: str, by: float) -> list[str]:
    """Return the numbers that MPS answers; none if it does not answer in time."""
    left_s = by - time.monotonic()
    if left_s <= 0:
        return []
    try:
        done = subprocess.run(
            [control],
            input=f"{command}\n",
            encoding="utf-8",
            errors="replace",
            capture_output=True,
            timeout=left_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [word for word in done.stdout.split() if word.isdecimal()]


def terminate_clients(control: str) -> None:
    """End the work of each client of this job on its GPU."""
    by = time.monotonic() + TERMINATE_S
    for server in ask(control, "get_server_list", by):
        for client in ask(control, f"get_client_list {server}", by):
            if descends(int(client)):
                ask(control, f"terminate_client {server} {client}", by)


def adopt_descendants() -> None:
    """Become the parent of each process of the job whose own parent ends: the kernel says whose it is."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # a Python without ctypes
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descends(pid: int) -> bool:
    """Return True if a process is below this one; its environment may name any job."""
    passed = set()
    while pid > 1 and pid not in passed:
        passed.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False
        if pid == os.getpid():
            return True
    return False


def job_ad() -> dict[str, str]:
    """Return the attributes of the job that are texts or numbers."""
    try:
        with open(os.environ["_CONDOR_JOB_AD"], errors="replace") as ad:
            return dict(re.findall(r'^(\w+) = "?([^"\n]*)', ad.read(), re.MULTILINE))
    except (KeyError, OSError):
        return {}


def survives(child: int, number: int) -> bool:
    """Return True if the process catches or ignores a signal."""
    try:
        with open(f"/proc/{child}/status") as status:
            masks = re.findall(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)", status.read(), re.MULTILINE)
    except OSError:
        return True
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def run(command: list[str], control: str, notice_s: float, notices: set[int]) -> int:
    """Run the job, pass on each signal, and return the job's wait status."""
    adopt_descendants()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        # to which Python gives meanings of its own
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            os.execv(command[0], command)
        except OSError as error:
            os.write(2, f"drone: cannot run {command[0]}: {error.strerror}\n".encode())
        os._exit(127)
    ends_at = float("inf")
    while True:
        left_s = max(0.0, min(ends_at - time.monotonic(), 3600.0))
        seen = signal.sigtimedwait(FORWARDED | {signal.SIGCHLD}, left_s)
        ended = 1
        status = 0
        while ended:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                return status
        if time.monotonic() >= ends_at:
            terminate_clients(control)
            ends_at = float("inf")
        if seen is not None and seen.si_signo != signal.SIGCHLD:
            if not survives(child, seen.si_signo):
                terminate_clients(control)
            elif seen.si_signo in notices:
                ends_at = min(ends_at, time.monotonic() + notice_s - TERMINATE_S)
            os.kill(child, seen.si_signo)


def main() -> None:
    """Run the job, write down when it ended, and end in the same way."""
    mine, vacate_s, control, *command = sys.argv[1:]
    ad = job_ad()
    most_s = ad.get("JobMaxVacateTime", "")
    names = [ad[kind] for kind in ("KillSig", "RemoveKillSig", "HoldKillSig") if kind in ad] or [
        "SIGTERM"
    ]
    notices = {int(getattr(signal, name, signal.SIGTERM)) for name in names}
    status = run(
        command,
        control,
        min(float(vacate_s), float(most_s) if most_s.isdecimal() else 1e9),
        notices,
    )
    terminate_clients(control)
    with contextlib.suppress(OSError):  # the job has ended in any case
        with open(mine, errors="replace") as line:
            words = line.read().split()
        hidden = os.path.join(os.path.dirname(mine), f".{os.path.basename(mine)}")
        with open(hidden, "w") as line:
            line.write(" ".join([*words[:3], str(int(time.time()))]) + "\n")
        os.replace(hidden, mine)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
