"""Drone directories: the claim on an id, the record that survives the controller, and the state of each drone.

``<root>/<drone id>/`` holds the drone's output in ``log`` and its own directory, ``drone/``: a
drone that root starts may give that to another account. The adapter's files are in ``.site/``,
which no other account may enter:

==========
=====================================================================================================
order.json type, allocation and controller: there from the beginning, as the directory is renamed
into place script     what the launcher runs launcher   ``pid start boot``: the one process that may
run the script; ``0 0 boot``: none ever will stop       the controller asked it to leave end
``exited CODE``, ``killed`` or ``fault MESSAGE``: no process of it is left ==========
=====================================================================================================

A process is known by pid, start time and boot, never by pid alone. Every process of a drone carries
``PROVISIONER_DRONE_ID=<id>`` in the environment that it was executed with, wherever it went
(``proc(5)``, environ).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from adapters.local.account import DroneAccount, DroneAccountError
from adapters.local.resources import HostAllocation
from adapters.shared.printing import last_line
from provisioner.drone import GPU_CHECK_EXITS
from provisioner.model import Bootstrap, DroneId, EndKind, RemoteDrone, RemoteEnd, RemoteState
from provisioner.processes import DRONE_TAG, Process, boot_id, end_tagged
from provisioner.serialization import from_json, to_json
from provisioner.values import frozen

_DIRECTORY_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PLAIN_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
LOG_LIMIT_BYTES = 64 << 20
_KEPT_LOG_BYTES = 8 << 20
"""Bytes that are kept of the end of a log that was too long."""
_CLAIM_LIMIT_S = 60.0
"""A claimed directory that no launcher has taken by then never will be."""
_OF_GPUS = re.compile(r"check%20gpu_|GPU check failed")
"""Words of the HTCondor drone and of that of the embedded overlay for a failed check of their GPUs."""
_VERDICTS = ("DRONE_GPU_RESET_S", 1800), ("DRONE_GPU_FATAL_S", 86400)
"""Life of a verdict of the class reset, and of the class fatal: its setting, and the default of that."""
_UNFINISHED = ".new-"
_REMOVED = ".old-"
_STARTER = re.compile(r"\.new-(\d+)-(\d+)-")


@frozen
class DroneRecord:
    """``order.json``."""

    controller: str
    site: str
    type: str
    grace_s: float
    starter: str
    """The process that made the directory, as :class:`Process` writes itself."""
    allocation: HostAllocation
    account: str = ""
    """The account that it runs under; empty: the controller's own, or the one that a drone of root takes."""
    epoch: int = 0

    @property
    def drone_account(self) -> DroneAccount | None:
        return DroneAccount(self.account) if self.account else None


def is_drone_id(name: str) -> bool:
    return _DIRECTORY_NAME.fullmatch(name) is not None


class LocalDrone:
    """A drone by its directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = DroneId(path.name)
        self.own = path / "drone"
        """The drone's own directory, in which it starts."""
        self.log = path / "log"
        self._site = path / ".site"

    @cached_property
    def record(self) -> DroneRecord:
        """``order.json``. Raises OSError or ValueError (``pydantic.ValidationError``) in a foreign directory."""
        return from_json(DroneRecord, (self._site / "order.json").read_bytes())

    @property
    def launcher(self) -> Process | None:
        """The process that runs the script; None if none has claimed it yet."""
        with contextlib.suppress(FileNotFoundError):
            return Process.parse((self._site / "launcher").read_text())
        return None

    @property
    def end(self) -> RemoteEnd | None:
        """Its end; there is an exit code only if its script ended by itself or by our request."""
        path = self._site / "end"
        try:
            word, _, rest = path.read_text(errors="replace").strip().partition(" ")
            at = path.stat().st_mtime
        except FileNotFoundError:
            return None
        if word == "exited":
            kind = EndKind.STOPPED if self.asked_to_stop else EndKind.EXITED
            outcome = self._site / "outcome" if self.record.account else self.own / "outcome"
            message = last_line(outcome) or last_line(self.log)
            by_gpu = int(rest) in GPU_CHECK_EXITS and _OF_GPUS.search(message) is not None
            return RemoteEnd(kind, at, int(rest), message, contained=by_gpu)
        return RemoteEnd(EndKind.STOPPED if word == "killed" else EndKind.FAULT, at, None, rest)

    def bad_gpus(self, env: Mapping[str, str]) -> Collection[int]:
        """Return the devices that its check found bad: those that it names, else all of its own.

        Empty once the verdict has expired, by the settings in ``env``, or the host has been booted.
        """
        end = self.end
        own = self.record.allocation.gpus.keys()
        if end is None or not end.contained or Process.parse(self.record.starter).boot != boot_id():
            return ()
        name, default = _VERDICTS["(fatal)" in end.message]
        if time.time() >= end.at + float(env.get(name, default)):
            return ()
        return own & set(map(int, re.findall(r"GPU%20(\d+)\b", end.message))) or own

    def listed(self) -> RemoteDrone:
        """Return its state; one without a launcher is brought to its end first."""
        end = self.end
        launcher = self.launcher
        state = RemoteState.RUNNING
        reason = ""
        if end is None and launcher is None:
            young = time.time() - (self._site / "order.json").stat().st_mtime < _CLAIM_LIMIT_S
            if (young and Process.parse(self.record.starter).alive) or not self.abandon():
                state = RemoteState.PENDING
            else:
                end = self.finish("the controller died before it was launched")
        elif end is None and launcher is not None and not launcher.alive:
            end = self.end  # it may have ended in order between the two questions
            if end is None and not self.kill():
                state = RemoteState.UNKNOWN
                reason = "its launcher is gone, its processes cannot be killed"
            elif end is None:
                rebooted = launcher.boot != boot_id()
                end = self.finish(
                    "the host was rebooted"
                    if rebooted
                    else "its launcher vanished, probably killed"
                )
        return RemoteDrone(
            drone_id=self.id,
            state=state if end is None else RemoteState.ENDED,
            remote_id=self.remote_id,
            type=self.record.type,
            started_at=(self._site / "launcher").stat().st_mtime if self.remote_id else 0.0,
            reason=reason,
            end=end,
            epoch=self.record.epoch,
        )

    @property
    def remote_id(self) -> str:
        """The launcher's pid; empty before it runs or if it never did."""
        launcher = self.launcher
        return str(launcher.pid or "") if launcher else ""

    def abandon(self) -> bool:
        """Claim that no process will ever run the script; return False if a launcher was first."""
        try:
            return self._make_once("launcher", f"0 0 {boot_id()}\n")
        except OSError:  # a full disk: no launcher can claim it either
            return self.launcher is None

    def ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):  # only the word for its end depends on it
            (self._site / "stop").touch(mode=0o600)

    @property
    def asked_to_stop(self) -> bool:
        return (self._site / "stop").exists()

    def finish(self, fault: str) -> RemoteEnd:
        """Record the end of a drone of which no process is left, unless one is recorded."""
        kind, message = (EndKind.STOPPED, "") if self.asked_to_stop else (EndKind.FAULT, fault)
        with contextlib.suppress(OSError):  # a full disk must not keep it alive
            self._make_once("end", "killed\n" if kind is EndKind.STOPPED else f"fault {fault}\n")
        return self.end or RemoteEnd(kind, time.time(), None, message)

    def kill(self) -> bool:
        """Send SIGKILL to its processes and those of its sessions until none is left; return False if some stay."""
        if account := self.record.drone_account:
            try:
                account.kill(self.id)
            except DroneAccountError:
                return False
        return end_tagged(f"{DRONE_TAG}={self.id}")

    def remove(self) -> None:
        """Remove the directory from every listing at once, then from the disk. What resists keeps a ``.old-`` name."""
        if account := self.record.drone_account:
            account.empty(self.own)  # while it is still listed: a failure is tried again
        aside = self.path.with_name(_REMOVED + self.id)
        os.rename(self.path, aside)
        _erase(aside)

    def discard(self) -> None:
        """Remove the directory of a drone that never ran, even one without a readable record."""
        with contextlib.suppress(OSError, ValueError):
            self.remove()
        _erase(self.path)

    def _make_once(
        self,
        name: str,
        text: str,
    ) -> bool:
        """Create a file with all of its content, unless it exists: a hard link is atomic."""
        handle, temporary = tempfile.mkstemp(prefix=f"{name}.", dir=self._site)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.link(temporary, self._site / name)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def shorten_log(self) -> None:
        """Keep only the end of a log that is too long. The drone appends, so it goes on behind that end.

        Lines that it writes in the same moment may be lost.
        """
        with contextlib.suppress(OSError):  # tried again at the next poll
            if self.log.lstat().st_size <= LOG_LIMIT_BYTES:
                return
            descriptor = os.open(self.log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                kept = min(LOG_LIMIT_BYTES // 2, _KEPT_LOG_BYTES)
                file.seek(-kept, os.SEEK_END)
                end = file.read(kept)
                file.truncate(0)
                file.write(b"[the beginning was cut off]\n" + end)


def directories(root: Path) -> Iterator[Path]:
    """Yield the directories in ``root`` that may be drones: plainly named, real, of this user."""
    uid = os.geteuid()
    with os.scandir(root) as entries:
        for entry in entries:
            if is_drone_id(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        yield Path(entry.path)


def claim(
    target: Path,
    record: DroneRecord,
    starter: Process,
    bootstrap: Bootstrap,
    environment: Iterable[str] = (),
) -> bool:
    """Make a drone's directory, with its script and files, at once; return False if the id is taken.

    A drone of another account gets its ``environment`` as a script, since sudo passes none on.

    Raises OSError, or ValueError for a file name that is not a plain one.
    """
    for name in bootstrap.files:
        if not _PLAIN_FILE_NAME.fullmatch(name):
            raise ValueError(f"admission file {name[:100]!r}: not a plain file name")
    account = record.drone_account
    fresh = Path(
        tempfile.mkdtemp(prefix=f"{_UNFINISHED}{starter.pid}-{starter.start}-", dir=target.parent)
    )
    try:
        files = {".site/order.json": to_json(record).encode()}
        if account is not None:
            fresh.chmod(0o733)  # for a moment, under a name that nobody can list or guess
            own = {
                **bootstrap.files,
                "script": bootstrap.script,
                "environment": "\n".join([*environment, ""]).encode(),
            }
            account.unpack(fresh / "drone", own)
        else:
            (fresh / "drone").mkdir(mode=0o700)
            files |= {f"drone/{name}": content for name, content in bootstrap.files.items()}
            files[".site/script"] = bootstrap.script
        if account is not None or os.geteuid() == 0:
            # an ordinary account, which a drone of root may become, must get through
            fresh.chmod(0o711)
        (fresh / ".site").mkdir(mode=0o700)
        for name, content in files.items():
            (fresh / name).touch(mode=0o600)
            (fresh / name).write_bytes(content)
        os.rename(fresh, target)
    except BaseException as error:
        _erase(fresh)
        if isinstance(error, OSError) and target.is_dir():
            return False
        raise
    return True


def clean_up(root: Path) -> None:
    """Remove directories that dead controllers left unfinished or half removed."""
    with os.scandir(root) as entries:
        names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    for name in names:
        starter = _STARTER.match(name)
        dead = (
            starter is not None and not Process(int(starter[1]), int(starter[2]), boot_id()).alive
        )
        if dead or name.startswith(_REMOVED):
            _erase(root / name)


def _erase(path: Path) -> None:
    """Remove a drone's directory as far as possible, and what belongs to an account of drones through that account."""
    own = path / "drone"
    with contextlib.suppress(OSError, KeyError):
        uid = own.lstat().st_uid
        if os.geteuid() not in (0, uid):
            DroneAccount(pwd.getpwuid(uid).pw_name).empty(own)
            own.rmdir()  # ours to remove, and not to look into
    shutil.rmtree(path, ignore_errors=True)
