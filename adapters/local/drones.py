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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from adapters.local.processes import Process, boot_id, kill_tagged, tagged
from adapters.local.resources import HostAllocation
from provisioner.model import Bootstrap, DroneId, EndKind, RemoteDrone, RemoteEnd, RemoteState
from provisioner.serialization import from_json, to_json

_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_KEPT_BYTES = 8 << 20
"""Bytes that are kept of the end of a log that was too long."""
_TAIL_BYTES = 4096
_MESSAGE_LIMIT = 300
UNFINISHED = ".new-"
REMOVED = ".old-"


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


@dataclass(frozen=True, slots=True)
class DroneEnd:
    """``end``. ``exit_code`` is None unless the drone's script ended by itself or by our request."""

    at: float
    exit_code: int | None
    killed: bool
    message: str


class InvalidNameError(ValueError):
    """A drone id or a file name that must not become a path."""


def is_drone_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class DroneDirectory:
    path: Path

    @property
    def drone_id(self) -> str:
        return self.path.name

    @property
    def own(self) -> Path:
        """The drone's own directory, in which it starts."""
        return self.path / "drone"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def _site(self) -> Path:
        return self.path / ".site"

    def record(self) -> DroneRecord:
        """Read the record. Raises OSError or ValueError (``pydantic.ValidationError``) in a foreign directory."""
        return from_json(DroneRecord, (self._site / "order.json").read_bytes())

    def launcher(self) -> tuple[Process, float] | None:
        """Return the process that runs the script, and since when; None if none has claimed it yet."""
        path = self._site / "launcher"
        try:
            return Process.parse(path.read_text()), path.stat().st_mtime
        except FileNotFoundError:
            return None

    def claimed_at(self) -> float:
        return (self._site / "order.json").stat().st_mtime

    def abandon(self, boot: str) -> bool:
        """Claim that no process will ever run the script; return False if a launcher was first."""
        return self._make_once("launcher", f"0 0 {boot}\n")

    def end(self) -> DroneEnd | None:
        path = self._site / "end"
        try:
            word, _, rest = path.read_text(errors="replace").strip().partition(" ")
            at = path.stat().st_mtime
        except FileNotFoundError:
            return None
        if word == "exited":
            return DroneEnd(at, int(rest), False, self._last_words())
        return DroneEnd(at, None, word == "killed", rest if word == "fault" else "")

    def settle(self, text: str) -> None:
        """Record the end, unless one is recorded."""
        self._make_once("end", text + "\n")

    def ask_to_stop(self) -> None:
        with contextlib.suppress(FileExistsError):
            (self._site / "stop").touch(mode=0o600)

    @property
    def asked_to_stop(self) -> bool:
        return (self._site / "stop").exists()

    def remove(self) -> None:
        """Remove the directory from every listing at once, then from the disk. What resists keeps a ``.old-`` name."""
        aside = self.path.with_name(REMOVED + self.drone_id)
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
                kept = min(most_bytes // 2, _KEPT_BYTES)
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
                    file.seek(max(0, os.fstat(descriptor).st_size - _TAIL_BYTES))
                    lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
                except OSError:  # a pipe or a directory by that name
                    continue
            for line in reversed(lines):
                if words := "".join(c if c.isprintable() else " " for c in line).strip():
                    return words[:_MESSAGE_LIMIT]
        return ""


def directories(root: Path) -> Iterator[DroneDirectory]:
    """Yield the directories in ``root`` that may be drones: plainly named, real, of this user."""
    uid = os.geteuid()
    with os.scandir(root) as entries:
        for entry in entries:
            if is_drone_id(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        yield DroneDirectory(Path(entry.path))


def prepare(root: Path, starter: Process, bootstrap: Bootstrap) -> Path:
    """Make a directory under a temporary name with the drone's script and files, mode 0600.

    Its mode is 0700, and 0711 for root. Raises OSError, or InvalidNameError for a file name that is not a plain one.
    """
    for name in bootstrap.files:
        if not _FILE.fullmatch(name):
            raise InvalidNameError(f"admission file {name[:100]!r}: not a plain file name")
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


def claim(fresh: Path, target: DroneDirectory, record: DroneRecord) -> bool:
    """Move a prepared directory to its drone id, with the record in it; return False if the id is taken."""
    try:
        _write(fresh / ".site" / "order.json", to_json(record).encode())
        os.rename(fresh, target.path)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.path.is_dir():
            return False
        raise
    return True


def clean_up(root: Path, boot: str) -> None:
    """Remove directories that dead controllers left unfinished or half removed."""
    with os.scandir(root) as entries:
        names = [
            e.name for e in entries if e.name.startswith((UNFINISHED, REMOVED)) and e.is_dir(follow_symlinks=False)
        ]
    for name in names:
        parts = name.removeprefix(UNFINISHED).split("-")
        if name.startswith(UNFINISHED) and (
            len(parts) < 3
            or not parts[0].isdigit()
            or not parts[1].isdigit()
            or Process(int(parts[0]), int(parts[1]), boot).alive(boot)
        ):
            continue
        shutil.rmtree(root / name, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


_CLAIM_LIMIT_S = 60.0
"""A claimed directory that no launcher has taken by then never will be."""


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


@dataclass(slots=True)
class DroneFacts:
    """Facts read from a drone's directory that cannot change any more."""

    record: DroneRecord
    launcher: Process | None = None
    started_at: float = 0.0
    end: DroneEnd | None = None

    @property
    def remote_id(self) -> str:
        """Return the launcher's pid; empty before it runs or if it never did."""
        return str(self.launcher.pid or "") if self.launcher else ""


@dataclass(frozen=True, slots=True)
class RegisteredDrone:
    directory: DroneDirectory
    known: DroneFacts
    life: DronePhase


class TaggedProcesses:
    """Drone ids with living processes, looked up at most once per poll and only when a launcher is missing."""

    def __init__(self) -> None:
        self._ids: Mapping[str, Sequence[int]] | None = None

    @property
    def ids(self) -> Mapping[str, Sequence[int]]:
        if self._ids is None:
            self._ids = tagged()
        return self._ids


class LocalDroneRegistry:
    """All drones of one root. Facts that cannot change are read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, DroneFacts] = {}
        self.boot = boot_id()

    def list_all(self, notices: list[str]) -> list[RegisteredDrone]:
        """Return every drone, of any controller. Raises OSError if the root cannot be read."""
        seen = list(self._each(notices))
        here = {one.directory.drone_id for one in seen}
        self._known = {name: known for name, known in self._known.items() if name in here}
        return seen

    def _each(self, notices: list[str]) -> Iterator[RegisteredDrone]:
        for directory in directories(self._root):
            known = self._known.get(directory.drone_id)
            try:
                if known is None:
                    known = DroneFacts(directory.record())
                    self._known[directory.drone_id] = known
                seen = RegisteredDrone(directory, known, self.phase(directory, known))
            except FileNotFoundError:
                continue  # not a drone, or removed meanwhile
            except ValueError as error:
                notices.append(f"{directory.path}: not a readable drone directory: {str(error).splitlines()[0]}")
                continue
            yield seen

    def phase(self, directory: DroneDirectory, known: DroneFacts) -> DronePhase:
        """Return the drone's phase; what is read on the way is added to ``known``."""
        if known.end is None:
            known.end = directory.end()
        if known.end is not None:
            return DronePhase.ENDED
        if known.launcher is None and (launcher := directory.launcher()) is not None:
            known.launcher, known.started_at = launcher
        if known.launcher is None:
            young = time.time() - directory.claimed_at() < _CLAIM_LIMIT_S
            return (
                DronePhase.CLAIMED
                if young and Process.parse(known.record.starter).alive(self.boot)
                else DronePhase.ABANDONED
            )
        if known.launcher.alive(self.boot):
            return DronePhase.RUNNING
        known.end = directory.end()  # it may have ended in order between the two questions
        return DronePhase.VANISHED if known.end is None else DronePhase.ENDED

    def settle(self, seen: RegisteredDrone, tags: TaggedProcesses) -> RemoteDrone:
        """Return the state of one of our drones; one without a launcher is brought to its end first."""
        directory, known = seen.directory, seen.known
        match seen.life:
            case DronePhase.CLAIMED:
                return _remote(seen, RemoteState.PENDING)
            case DronePhase.RUNNING:
                return _remote(seen, RemoteState.RUNNING)
            case DronePhase.ABANDONED:
                if not self._abandon(directory):  # a launcher was quicker, the next listing shows it
                    return _remote(seen, RemoteState.PENDING)
                self.finish(directory, known, "the controller died before it was launched")
            case DronePhase.VANISHED:
                if directory.drone_id in tags.ids and not kill_tagged(directory.drone_id):
                    return _remote(seen, RemoteState.UNKNOWN, "its launcher is gone, its processes cannot be killed")
                rebooted = known.launcher is not None and known.launcher.boot != self.boot
                self.finish(
                    directory, known, "the host was rebooted" if rebooted else "its launcher vanished, probably killed"
                )
            case DronePhase.ENDED:
                pass
        return _remote(seen, RemoteState.ENDED)

    def _abandon(self, directory: DroneDirectory) -> bool:
        try:
            return directory.abandon(self.boot)
        except OSError:  # a full disk: no launcher can claim it either
            return directory.launcher() is None

    def finish(self, directory: DroneDirectory, known: DroneFacts, fault: str) -> None:
        """Record the end of a drone of which no process is left."""
        text = "killed" if directory.asked_to_stop else f"fault {fault}"
        try:
            directory.settle(text)
            known.end = directory.end()
        except OSError:  # a full disk must not keep it alive
            known.end = DroneEnd(time.time(), None, text == "killed", fault)


def holds(seen: RegisteredDrone, tags: TaggedProcesses) -> bool:
    """Return whether another controller's drone still holds resources here. It is left as it is."""
    match seen.life:
        case DronePhase.CLAIMED | DronePhase.RUNNING:
            return True
        case DronePhase.VANISHED | DronePhase.ABANDONED:
            return seen.directory.drone_id in tags.ids
        case DronePhase.ENDED:
            return False


def _remote(seen: RegisteredDrone, state: RemoteState, reason: str = "") -> RemoteDrone:
    known = seen.known
    end = None
    if state is RemoteState.ENDED and known.end is not None:
        asked = known.end.killed or (known.end.exit_code is not None and seen.directory.asked_to_stop)
        kind = EndKind.STOPPED if asked else EndKind.FAULT if known.end.exit_code is None else EndKind.EXITED
        end = RemoteEnd(kind, known.end.at, known.end.exit_code, known.end.message)
    return RemoteDrone(
        drone_id=DroneId(seen.directory.drone_id),
        state=state,
        remote_id=known.remote_id,
        type=known.record.type,
        started_at=known.started_at,
        reason=reason,
        end=end,
    )
