"""One controller per store: a kernel lock on ``<store>.lock``, which also says who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from provisioner.store import Holder, StoreError, StoreHeld

_TRIES = 10
_PAUSE_S = 0.05
"""A reader that asks for the holder takes the lock for an instant: try again before refusing."""


def lock_path(store: Path) -> Path:
    return store.with_name(store.name + ".lock")


class StoreLock:
    """Held from :meth:`take` to :meth:`release`; the kernel releases it when the process dies, however it dies."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._fd = -1

    def take(self) -> None:
        """Raises :class:`StoreHeld`, naming the holder, if another controller has it."""
        try:
            fd = os.open(lock_path(self._store), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"store {self._store}: cannot lock it: {error}") from error
        for attempt in range(_TRIES):
            if _flock(fd, fcntl.LOCK_EX):
                break
            if attempt + 1 < _TRIES:
                time.sleep(_PAUSE_S)
        else:
            holder = _read(fd)
            os.close(fd)
            raise StoreHeld(_refusal(self._store, holder))
        self._fd = fd
        self._write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}))

    def release(self) -> None:
        if self._fd >= 0:
            self._write("")
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: str) -> None:
        """Who holds it, for people only: the lock holds even if a full disk keeps this from being written."""
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)
        except OSError:
            return


def holder_of(store: Path) -> Holder | None:
    """Who really holds the lock now: what a dead holder left in the file does not count."""
    try:
        fd = os.open(lock_path(store), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"store {store}: cannot read its lock: {error}") from error
    try:
        return None if _flock(fd, fcntl.LOCK_SH) else _read(fd)
    finally:
        os.close(fd)


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> Holder:
    """The holder as the file names it; pid 0 while it has not written its name yet."""
    try:
        told = json.loads(os.pread(fd, 4096, 0))
        return Holder(int(told["pid"]), str(told["host"]), float(told["since"]))
    except (ValueError, KeyError, TypeError):
        return Holder(0, "", 0.0)


def _refusal(store: Path, holder: Holder) -> str:
    who = "another controller"
    if holder.pid:
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(holder.since))
        who = f"the controller with pid {holder.pid} on {holder.host}, since {since}"
    return f"store {store} is held by {who}: stop that one first, or give this one a `store: path:` of its own"
