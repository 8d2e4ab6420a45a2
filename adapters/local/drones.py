"""Drone directories: the claim on an id, the record that survives the controller, and the state of each drone.

``<root>/<drone id>/`` holds the drone's output in ``log`` and its own directory, ``drone/``: a drone that root starts
may give that to another account. The adapter's files are in ``.site/``, which no other
account may enter:

========== =====================================================================================================
order.json type, allocation and controller: there from the beginning, as the directory is renamed into place
script     what the launcher runs
launcher   ``pid start boot``: the one process that may run the script; ``0 0 boot``: none ever will
stop       the controller asked it to leave
end        ``exited CODE``, ``killed`` or ``fault MESSAGE``: no process of it is left
========== =====================================================================================================
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from pathlib import Path

from adapters.local.processes import Process, boot_id, kill_tagged
from adapters.local.resources import HostAllocation
from provisioner.model import Bootstrap, DroneId, EndKind, RemoteDrone, RemoteEnd, RemoteState
from provisioner.serialization import from_json, to_json

_DIRECTORY_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PLAIN_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_KEPT_LOG_BYTES = 8 << 20
"""Bytes that are kept of the end of a log that was too long."""
_LOG_TAIL_BYTES = 4096
_MESSAGE_LIMIT = 300
_CLAIM_LIMIT_S = 60.0
"""A claimed directory that no launcher has taken by then never will be."""
UNFINISHED = ".new-"
REMOVED = ".old-"
_STARTER = re.compile(r"\.new-(\d+)-(\d+)-")


@dataclass(frozen=True, slots=True)
class DroneRecord:
    """``order.json``."""

    controller: str
    site: str
    type: str
    grace_s: float
    starter: str
    """The process that made the directory, as :class:`Process` writes itself."""
    allocation: HostAllocation


class DronePhase(Enum):
    """Phases of a drone between its claim and its end."""

    CLAIMED = auto()
    """Its controller is about to launch it."""
    ABANDONED = auto()
    """Its controller died before it did."""
    RUNNING = auto()
    VANISHED = auto()
    """Its launcher is gone without a recorded end; processes of it may be left."""
    ENDED = auto()


def is_drone_id(name: str) -> bool:
    return _DIRECTORY_NAME.fullmatch(name) is not None


class LocalDrone:
    """A drone by its directory. What cannot change any more is read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = DroneId(path.name)
        self.own = path / "drone"
        """The drone's own directory, in which it starts."""
        self.log = path / "log"
        self.started_at = 0.0
        self._site = path / ".site"
        self._launcher: Process | None = None
        self._end: RemoteEnd | None = None

    @cached_property
    def record(self) -> DroneRecord:
        """``order.json``. Raises OSError or ValueError (``pydantic.ValidationError``) in a foreign directory."""
        return from_json(DroneRecord, (self._site / "order.json").read_bytes())

    @property
    def launcher(self) -> Process | None:
        """The process that runs the script; None if none has claimed it yet."""
        if self._launcher is None:
            path = self._site / "launcher"
            with contextlib.suppress(FileNotFoundError):
                self._launcher = Process.parse(path.read_text())
                self.started_at = path.stat().st_mtime if self._launcher.pid else 0.0
        return self._launcher

    @property
    def remote_id(self) -> str:
        """The launcher's pid; empty before it runs or if it never did."""
        return str(self.launcher.pid or "") if self.launcher else ""

    @property
    def end(self) -> RemoteEnd | None:
        return self._read_end()

    def _read_end(self) -> RemoteEnd | None:
        """Return its end; there is an exit code only if its script ended by itself or by our request."""
        if self._end is None:
            path = self._site / "end"
            with contextlib.suppress(FileNotFoundError):
                word, _, rest = path.read_text(errors="replace").strip().partition(" ")
                at = path.stat().st_mtime
                if word == "exited":
                    kind = EndKind.STOPPED if self.asked_to_stop else EndKind.EXITED
                    self._end = RemoteEnd(kind, at, int(rest), self._last_words())
                else:
                    kind = EndKind.STOPPED if word == "killed" else EndKind.FAULT
                    self._end = RemoteEnd(kind, at, None, rest if word == "fault" else "")
        return self._end

    @property
    def phase(self) -> DronePhase:
        if self.end is not None:
            return DronePhase.ENDED
        if self.launcher is None:
            young = time.time() - (self._site / "order.json").stat().st_mtime < _CLAIM_LIMIT_S
            return DronePhase.CLAIMED if young and Process.parse(self.record.starter).alive else DronePhase.ABANDONED
        if self.launcher.alive:
            return DronePhase.RUNNING
        # it may have ended in order between the two questions
        return DronePhase.VANISHED if self._read_end() is None else DronePhase.ENDED

    def abandon(self) -> bool:
        """Claim that no process will ever run the script; return False if a launcher was first."""
        return self._make_once("launcher", f"0 0 {boot_id()}\n")

    def ask_to_stop(self) -> None:
        with contextlib.suppress(FileExistsError):
            (self._site / "stop").touch(mode=0o600)

    @property
    def asked_to_stop(self) -> bool:
        return (self._site / "stop").exists()

    def finish(self, fault: str) -> None:
        """Record the end of a drone of which no process is left, unless one is recorded."""
        asked = self.asked_to_stop
        try:
            self._make_once("end", "killed\n" if asked else f"fault {fault}\n")
        except OSError:  # a full disk must not keep it alive
            self._end = RemoteEnd(EndKind.STOPPED if asked else EndKind.FAULT, time.time(), None, fault)

    def remove(self) -> None:
        """Remove the directory from every listing at once, then from the disk. What resists keeps a ``.old-`` name."""
        aside = self.path.with_name(REMOVED + self.id)
        os.rename(self.path, aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _make_once(self, name: str, text: str) -> bool:
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

    def shorten_log(self, most_bytes: int) -> None:
        """Keep only the end of a log of more than ``most_bytes``. The drone appends, so it goes on behind that end.

        Lines that it writes in the same moment may be lost. What fails is tried again at the next poll.
        """
        with contextlib.suppress(OSError):
            if self.log.lstat().st_size <= most_bytes:
                return
            descriptor = os.open(self.log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return
                kept = min(most_bytes // 2, _KEPT_LOG_BYTES)
                file.seek(-kept, os.SEEK_END)
                end = file.read(kept)
                file.truncate(0)
                file.write(b"[the beginning was cut off: log_limit]\n" + end)

    def _last_words(self) -> str:
        """Return the last line of the drone's ``outcome``, else of its log; untrusted text, made printable."""
        for path in (self.own / "outcome", self.log):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            with os.fdopen(descriptor, "rb") as file:
                try:
                    file.seek(max(0, os.fstat(descriptor).st_size - _LOG_TAIL_BYTES))
                    lines = file.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
                except OSError:  # a pipe or a directory by that name
                    continue
            for line in reversed(lines):
                if words := "".join(c if c.isprintable() else " " for c in line).strip():
                    return words[:_MESSAGE_LIMIT]
        return ""


def directories(root: Path) -> Iterator[Path]:
    """Yield the directories in ``root`` that may be drones: plainly named, real, of this user."""
    uid = os.geteuid()
    with os.scandir(root) as entries:
        for entry in entries:
            if is_drone_id(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        yield Path(entry.path)


def prepare(root: Path, starter: Process, bootstrap: Bootstrap) -> Path:
    """Make a directory under a temporary name with the drone's script and files, mode 0600.

    Its mode is 0700, and 0711 for root. Raises OSError, or ValueError for a file name that is not a plain one.
    """
    for name in bootstrap.files:
        if not _PLAIN_FILE_NAME.fullmatch(name):
            raise ValueError(f"admission file {name[:100]!r}: not a plain file name")
    fresh = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{starter.pid}-{starter.start}-", dir=root))
    try:
        if os.geteuid() == 0:
            fresh.chmod(0o711)  # an ordinary account, which a drone of root may become, must get through
        (fresh / ".site").mkdir(mode=0o700)
        (fresh / "drone").mkdir(mode=0o700)
        _write(fresh / ".site" / "script", bootstrap.script)
        for name, content in bootstrap.files.items():
            _write(fresh / "drone" / name, content)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return fresh


def claim(fresh: Path, target: Path, record: DroneRecord) -> bool:
    """Move a prepared directory to its drone id, with the record in it; return False if the id is taken."""
    try:
        _write(fresh / ".site" / "order.json", to_json(record).encode())
        os.rename(fresh, target)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.is_dir():
            return False
        raise
    return True


def clean_up(root: Path) -> None:
    """Remove directories that dead controllers left unfinished or half removed."""
    with os.scandir(root) as entries:
        names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    for name in names:
        starter = _STARTER.match(name)
        dead = starter is not None and not Process(int(starter[1]), int(starter[2]), boot_id()).alive
        if dead or name.startswith(REMOVED):
            shutil.rmtree(root / name, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def listed(drone: LocalDrone, phase: DronePhase, ids_with_processes: Callable[[], Collection[str]]) -> RemoteDrone:
    """Return the state of one of our drones; one without a launcher is brought to its end first."""
    match phase:
        case DronePhase.CLAIMED:
            return _remote(drone, RemoteState.PENDING)
        case DronePhase.RUNNING:
            return _remote(drone, RemoteState.RUNNING)
        case DronePhase.ABANDONED:
            try:
                abandoned = drone.abandon()
            except OSError:  # a full disk: no launcher can claim it either
                abandoned = drone.launcher is None
            if not abandoned:  # a launcher was quicker, the next listing shows it
                return _remote(drone, RemoteState.PENDING)
            drone.finish("the controller died before it was launched")
        case DronePhase.VANISHED:
            if drone.id in ids_with_processes() and not kill_tagged(drone.id):
                return _remote(drone, RemoteState.UNKNOWN, "its launcher is gone, its processes cannot be killed")
            rebooted = drone.launcher is not None and drone.launcher.boot != boot_id()
            drone.finish("the host was rebooted" if rebooted else "its launcher vanished, probably killed")
        case DronePhase.ENDED:
            pass
    return _remote(drone, RemoteState.ENDED)


def _remote(drone: LocalDrone, state: RemoteState, reason: str = "") -> RemoteDrone:
    return RemoteDrone(
        drone_id=drone.id,
        state=state,
        remote_id=drone.remote_id,
        type=drone.record.type,
        started_at=drone.started_at,
        reason=reason,
        end=drone.end if state is RemoteState.ENDED else None,
    )


def holds_resources(drone: LocalDrone, phase: DronePhase, ids_with_processes: Callable[[], Collection[str]]) -> bool:
    """Return True if another controller's drone still holds resources here. It is left as it is."""
    match phase:
        case DronePhase.CLAIMED | DronePhase.RUNNING:
            return True
        case DronePhase.VANISHED | DronePhase.ABANDONED:
            return drone.id in ids_with_processes()
        case DronePhase.ENDED:
            return False
