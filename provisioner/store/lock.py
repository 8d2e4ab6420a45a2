"""One controller per store: a kernel lock on ``<store>.lock``, which also says who holds it.

The lock goes by name, and a name can be removed or be one of several. So the store holds the claim
of its holder as well (:func:`claim_of`), and each transaction of a controller requires its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from provisioner.processes import Process
from provisioner.store import Holder, StoreError, StoreHeldError

_LOCK_ATTEMPTS = 10
_LOCK_PAUSE_S = 0.05
"""A reader that asks for the holder takes the lock for an instant: try again before refusing."""
HOLDER = "holder"
"""Key of the holder's claim in the store."""
_LOCK_FILE_MODE = 0o640
"""Everybody who may open the file may lock it, with a shared lock too. So others may not open it."""


def lock_path(store: Path) -> Path:
    """Return the path of the lock file: beside the file itself, whatever symbolic link ``store`` is."""
    real = Path(os.path.realpath(store))
    return real.with_name(real.name + ".lock")


class StoreLock:
    """Held from :meth:`take` to :meth:`release`; the kernel releases it when the process dies, however it dies."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._fd = -1

    def take(self, *, shared: bool = False) -> Holder:
        """Lock the store for this process, or with others (``shared``) that do so.

        Raises :class:`StoreHeldError`, naming the holder, if another has it.
        """
        self.release()
        path = lock_path(self._store)
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _LOCK_FILE_MODE)
            except OSError as error:
                raise StoreError(f"store {self._store}: cannot lock it: {error}") from error
            with suppress(OSError):  # of an earlier release, which let everybody read it
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & _LOCK_FILE_MODE)
            free = _flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # it may have been removed before it was locked
                if free and os.path.samestat(os.fstat(fd), os.stat(path)):
                    break
            if attempt + 1 == _LOCK_ATTEMPTS:
                holder = _read(fd)
                lockers = _lockers(fd)
                os.close(fd)
                if not lockers or holder.pid in lockers:
                    raise held(
                        self._store, holder if is_alive(holder) is not False else Holder(0, "", 0.0)
                    )
                found = f"{path} is locked by process {', '.join(map(str, lockers))}, which is no controller"
                raise StoreHeldError(f"store {self._store}: {found}. End it, then start again")
            os.close(fd)
            time.sleep(_LOCK_PAUSE_S)
        self._fd = fd
        holder = this_process()
        self._write(holder_json(holder))
        return holder

    def release(self) -> None:
        """Unlock the store; without effect if it is not locked."""
        if self._fd >= 0:
            self._write("")
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: str) -> None:
        """Write who holds it, for people only: the lock holds even if a full disk keeps this from being written."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)


def this_process() -> Holder:
    """Return this process as a holder."""
    return Holder(os.getpid(), socket.gethostname(), time.time(), process_of(os.getpid()))


def claim_of(holder: Holder, store: Path) -> str:
    """Return the claim of ``holder`` on the file at ``store``, as text in it: copies of a store are made."""
    return f"{file_id(store)} {holder_json(holder)}"


def read_claim(text: str) -> tuple[str, Holder]:
    """Return the id of the file that a claim is for, and the holder; pid 0 if that cannot be read."""
    file, _, holder = text.partition(" ")
    return file, read_holder(holder)


def holder_of(store: Path) -> Holder | None:
    """Return the process that holds the lock now; what a dead holder left in the file does not count.

    Raises PermissionError if this user may not ask.
    """
    try:
        fd = os.open(lock_path(store), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise
    except OSError as error:
        raise StoreError(f"store {store}: cannot read its lock: {error}") from error
    try:
        return None if _flock(fd, fcntl.LOCK_SH) else _read(fd)
    finally:
        os.close(fd)


def process_of(pid: int) -> str:
    """Return boot, PID namespace and start time of a living process; empty if there is none, or no Linux.

    That distinguishes it from all others, also those that get its number later or have it in
    another container.
    """
    process = Process.of(pid)
    if process.start < 0:
        return ""
    return f"{process.boot} {os.readlink('/proc/self/ns/pid')} {process.start}"


def is_alive(holder: Holder) -> bool | None:
    """Return whether the holder's process lives; None if that is unknown here (another container or host)."""
    here = process_of(os.getpid())
    if (
        not holder.process
        or holder.host != socket.gethostname()
        or here.split()[:2] != holder.process.split()[:2]
    ):
        return None
    return process_of(holder.pid) == holder.process


def held(store: object, holder: Holder) -> StoreHeldError:
    """Return the refusal of a store that ``holder`` holds."""
    return StoreHeldError(
        f"store {store} is held by {_named(holder)}: stop that one first, or give this one a store of its own"
    )


def taken_over(store: object, holder: Holder | None) -> StoreHeldError:
    """Return the refusal of a store that another controller took while this one ran."""
    who = (
        _named(holder)
        if holder is not None
        else "nobody: it was replaced by another file or a copy"
    )
    return StoreHeldError(
        f"store {store} is now held by {who}: this controller records nothing and acts on nothing any more. Stop it, "
        f"and remove no lock file while a controller runs"
    )


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def file_id(store: Path) -> str:
    found = os.stat(store)
    return f"{found.st_dev}:{found.st_ino}"


def holder_json(holder: Holder) -> str:
    return json.dumps(asdict(holder), sort_keys=True)


def _read(fd: int) -> Holder:
    return read_holder(os.pread(fd, 4096, 0).decode(errors="replace"))


def read_holder(text: str) -> Holder:
    """Return the holder that a text names; pid 0 while it has not written its name yet."""
    try:
        known = json.loads(text)
        return Holder(
            int(known["pid"]),
            str(known["host"]),
            float(known["since"]),
            str(known.get("process", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Holder(0, "", 0.0)


def _lockers(fd: int) -> list[int]:
    """Return the processes that hold locks of the open file, as far as the kernel shows them here."""
    inode = str(os.fstat(fd).st_ino)
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    return [
        int(each[4]) for each in lines if each[1] == "FLOCK" and each[5].rpartition(":")[2] == inode
    ]


def _named(holder: Holder) -> str:
    if not holder.pid:
        return "another controller"
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(holder.since))
    return f"the controller with pid {holder.pid} on {holder.host}, since {since}"
