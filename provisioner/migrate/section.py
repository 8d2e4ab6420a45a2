"""A mapping of theirs whose keys are taken one by one, so that none is overlooked."""

from __future__ import annotations

from collections.abc import Iterator

from provisioner.migrate.findings import Notes
from provisioner.migrate.told import Told


class Section:
    """``path``: how it is called in findings. A value that is no plain mapping is one without keys, and told of."""

    def __init__(self, told: Told | None, path: str, notes: Notes, line: int = 1) -> None:
        self.path, self.notes = path, notes
        self.line = told.line if told is not None else line
        self.is_there = told is not None and isinstance(told.value, dict)
        self._left: dict[str, Told] = {}
        if told is not None and isinstance(told.value, dict):
            if not told.tag:
                self._left = dict(told.value)
        elif told is not None and told.value is not None:
            notes.needed(told.line, path, "", "a mapping is wanted here: nothing of it could be taken over")

    def take(self, key: str) -> Told | None:
        """The value of ``key``, once."""
        return self._left.pop(key, None)

    def peek(self, key: str) -> Told | None:
        """The value of ``key``, which stays to be taken."""
        return self._left.get(key)

    def below(self, key: str) -> Section:
        """The mapping at ``key``."""
        return Section(self.take(key), self.name(key), self.notes, self.line)

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def left(self) -> Iterator[tuple[str, Told]]:
        """What nobody has taken."""
        rest, self._left = self._left, {}
        yield from rest.items()

    def drop(self, why: dict[str, str]) -> None:
        """Keys without a counterpart, and why."""
        for key, text in why.items():
            told = self.take(key)
            if told is not None:
                self.notes.dropped(told.line, self.name(key), text)

    def drop_rest(self, text: str) -> None:
        for key, told in self.left():
            self.notes.dropped(told.line, self.name(key), text)
