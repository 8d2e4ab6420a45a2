"""A drone's directory: the claim on its id, the record that survives the controller, and what is left at the end.

``<root>/<drone id>/`` holds the drone's output in ``log`` and its own directory, ``drone/``: a drone that root starts
may give that to another account. Our files are in ``.site/``, which nobody else may enter:

========== =====================================================================================================
order.json the type, the allotment, who asked: there from the beginning, as the directory is renamed into place
script     what the launcher runs
launcher   ``pid start boot``: the one process that may run the script; ``0 0 boot``: nobody ever will
stop       we asked it to leave
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adapters.local.allotment import Allotment
from adapters.local.processes import Process
from provisioner.model import Bootstrap
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
class Record:
    """``order.json``."""

    controller: str
    site: str
    type: str
    grace_s: float
    starter: str
    """The process that made the directory, as :class:`Process` writes itself."""
    allotment: Allotment


@dataclass(frozen=True, slots=True)
class End:
    """``end``. ``exit_code`` is None unless the drone's script ended by itself or by our request."""

    at: float
    exit_code: int | None
    killed: bool
    message: str


class BadName(ValueError):
    """A drone id or file name that must not become a path."""


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

    def record(self) -> Record:
        """Raises OSError or ValueError (``pydantic.ValidationError``) where this is no directory of ours."""
        return from_json(Record, (self._site / "order.json").read_bytes())

    def launcher(self) -> tuple[Process, float] | None:
        """Who runs the script, and since when; None if nobody has claimed to yet."""
        path = self._site / "launcher"
        try:
            return Process.parse(path.read_text()), path.stat().st_mtime
        except FileNotFoundError:
            return None

    def claimed_at(self) -> float:
        return (self._site / "order.json").stat().st_mtime

    def abandon(self, boot: str) -> bool:
        """Claim that nobody will ever run the script; False if a launcher has been quicker."""
        return self._make_once("launcher", f"0 0 {boot}\n")

    def end(self) -> End | None:
        path = self._site / "end"
        try:
            word, _, rest = path.read_text(errors="replace").strip().partition(" ")
            at = path.stat().st_mtime
        except FileNotFoundError:
            return None
        if word == "exited":
            return End(at, int(rest), False, self._last_words())
        return End(at, None, word == "killed", rest if word == "fault" else "")

    def settle(self, text: str) -> None:
        """Write down the end, unless it has been written."""
        self._make_once("end", text + "\n")

    def ask_to_stop(self) -> None:
        with contextlib.suppress(FileExistsError):
            (self._site / "stop").touch(mode=0o600)

    @property
    def asked_to_stop(self) -> bool:
        return (self._site / "stop").exists()

    def remove(self) -> None:
        """Out of every listing at once, then from the disk. What resists stays under a ``.old-`` name."""
        aside = self.path.with_name(REMOVED + self.drone_id)
        os.rename(self.path, aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _make_once(self, name: str, text: str) -> bool:
        """A file with all of its content, if there was none of that name: a hard link is atomic."""
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

        Lines that it writes in the same moment may be lost. What fails is tried again at the next look.
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
        """The last line of the drone's ``outcome``, else of its log; untrusted text, made printable."""
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
    """Directories in ``root`` that may be drones: plainly named, real, of this user. Anything else there is ignored."""
    uid = os.geteuid()
    with os.scandir(root) as entries:
        for entry in entries:
            if is_drone_id(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_uid == uid:
                        yield DroneDirectory(Path(entry.path))


def prepare(root: Path, starter: Process, bootstrap: Bootstrap) -> Path:
    """A directory under a temporary name with the drone's script and files; 0700 (0711 if we are root), files 0600.

    Raises OSError, or BadName for a file name that is not a plain one.
    """
    for name in bootstrap.files:
        if not _FILE.fullmatch(name):
            raise BadName(f"admission file {name[:100]!r}: not a plain file name")
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


def claim(fresh: Path, target: DroneDirectory, record: Record) -> bool:
    """Move a prepared directory to its drone id, with the record in it; False if the id is taken."""
    try:
        _write(fresh / ".site" / "order.json", to_json(record).encode())
        os.rename(fresh, target.path)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.path.is_dir():
            return False
        raise
    return True


def sweep(root: Path, boot: str) -> None:
    """Remove what dead controllers left unfinished, prepared or half removed."""
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
