"""The roll: every drone directory under a root, and what is true of its drone now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from adapters.local.directory import DroneDirectory, End, Record, directories
from adapters.local.processes import Process, boot_id, kill_tagged, tagged
from provisioner.model import DroneId, EndKind, RemoteDrone, RemoteEnd, RemoteState

_CLAIM_LIMIT_S = 60.0
"""A claimed directory that no launcher has taken by then never will be."""


class Life(Enum):
    """Where a drone is between its claim and its end."""

    CLAIMED = auto()
    """Its controller is about to launch it."""
    ABANDONED = auto()
    """Its controller died before it did."""
    RUNNING = auto()
    VANISHED = auto()
    """Its launcher is gone without a word; processes of it may be left."""
    ENDED = auto()


@dataclass(slots=True)
class Known:
    """What has been read of a directory and cannot change any more."""

    record: Record
    launcher: Process | None = None
    started_at: float = 0.0
    end: End | None = None

    @property
    def remote_id(self) -> str:
        """The launcher's pid; empty before it runs or if it never did."""
        return str(self.launcher.pid or "") if self.launcher else ""


@dataclass(frozen=True, slots=True)
class Seen:
    directory: DroneDirectory
    known: Known
    life: Life


class Tags:
    """Drone ids with living processes, looked up at most once per look and only when somebody is missing."""

    def __init__(self) -> None:
        self._ids: Mapping[str, Sequence[int]] | None = None

    @property
    def ids(self) -> Mapping[str, Sequence[int]]:
        if self._ids is None:
            self._ids = tagged()
        return self._ids


class Roll:
    """All drones of one root. Remembers what cannot change, so that calling it is cheap."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, Known] = {}
        self.boot = boot_id()

    def call(self, notices: list[str]) -> list[Seen]:
        """Every drone, of whichever controller. Raises OSError if the root cannot be read."""
        seen = list(self._each(notices))
        here = {one.directory.drone_id for one in seen}
        self._known = {name: known for name, known in self._known.items() if name in here}
        return seen

    def _each(self, notices: list[str]) -> Iterator[Seen]:
        for directory in directories(self._root):
            known = self._known.get(directory.drone_id)
            try:
                if known is None:
                    known = Known(directory.record())
                    self._known[directory.drone_id] = known
                seen = Seen(directory, known, self.life(directory, known))
            except FileNotFoundError:
                continue  # not a drone, or removed meanwhile
            except ValueError as error:
                notices.append(f"{directory.path}: not a readable drone directory: {str(error).splitlines()[0]}")
                continue
            yield seen

    def life(self, directory: DroneDirectory, known: Known) -> Life:
        """Where the drone is now; what was read on the way is added to ``known``."""
        if known.end is None:
            known.end = directory.end()
        if known.end is not None:
            return Life.ENDED
        if known.launcher is None and (launcher := directory.launcher()) is not None:
            known.launcher, known.started_at = launcher
        if known.launcher is None:
            young = time.time() - directory.claimed_at() < _CLAIM_LIMIT_S
            return Life.CLAIMED if young and Process.parse(known.record.starter).alive(self.boot) else Life.ABANDONED
        if known.launcher.alive(self.boot):
            return Life.RUNNING
        known.end = directory.end()  # it may have ended in order between the two questions
        return Life.VANISHED if known.end is None else Life.ENDED

    def settle(self, seen: Seen, tags: Tags) -> RemoteDrone:
        """What one of our drones is now; one that nobody looks after any more is brought to its end first."""
        directory, known = seen.directory, seen.known
        match seen.life:
            case Life.CLAIMED:
                return _remote(seen, RemoteState.PENDING)
            case Life.RUNNING:
                return _remote(seen, RemoteState.RUNNING)
            case Life.ABANDONED:
                if not self._abandon(directory):  # a launcher was quicker, the next listing shows it
                    return _remote(seen, RemoteState.PENDING)
                self.finish(directory, known, "the controller died before it was launched")
            case Life.VANISHED:
                if directory.drone_id in tags.ids and not kill_tagged(directory.drone_id):
                    return _remote(seen, RemoteState.UNKNOWN, "its launcher is gone, its processes cannot be killed")
                rebooted = known.launcher is not None and known.launcher.boot != self.boot
                self.finish(
                    directory, known, "the host was rebooted" if rebooted else "its launcher vanished, probably killed"
                )
            case Life.ENDED:
                pass
        return _remote(seen, RemoteState.ENDED)

    def _abandon(self, directory: DroneDirectory) -> bool:
        try:
            return directory.abandon(self.boot)
        except OSError:  # a full disk: no launcher can claim it either
            return directory.launcher() is None

    def finish(self, directory: DroneDirectory, known: Known, fault: str) -> None:
        """Write down the end of a drone of which nothing is left."""
        text = "killed" if directory.asked_to_stop else f"fault {fault}"
        try:
            directory.settle(text)
            known.end = directory.end()
        except OSError:  # a full disk must not keep it alive
            known.end = End(time.time(), None, text == "killed", fault)


def holds(seen: Seen, tags: Tags) -> bool:
    """Whether another controller's drone still takes room here. Nothing is settled for it."""
    match seen.life:
        case Life.CLAIMED | Life.RUNNING:
            return True
        case Life.VANISHED | Life.ABANDONED:
            return seen.directory.drone_id in tags.ids
        case Life.ENDED:
            return False


def _remote(seen: Seen, state: RemoteState, reason: str = "") -> RemoteDrone:
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
