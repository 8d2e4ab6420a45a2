"""Exit codes, and the one exception by which a verb says why it cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Exit(IntEnum):
    """What the exit code of every verb means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNMET = 3
    PARTIAL = 4
    TIMED_OUT = 124
    INTERRUPTED = 130


EXIT_HELP = (
    "Exit codes: 0 success, an empty list included; 1 failed; 2 wrong usage; 3 condition not met (check found "
    "problems, replay differs, reload refused, configuration invalid); 4 some of several succeeded; 124 time is up; "
    "130 interrupted."
)


class Failure(Exception):
    """A verb cannot do what was asked. Lines go to stderr, without a traceback."""

    def __init__(self, *lines: str, code: Exit = Exit.FAILED) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


def failure_of(error: BaseException) -> Failure | None:
    """The :class:`Failure` to show for an error that is not a bug; None for one that is."""
    from provisioner.config import ConfigError
    from provisioner.store import StoreError

    match error:
        case Failure():
            return error
        case ConfigError():
            return Failure(*map(str, error.problems), _problems(error.problems), code=Exit.UNMET)
        case StoreError():
            return Failure(str(error))
        case OSError() if error.filename is not None:
            return Failure(f"{error.filename}: {error.strerror or error}")
        case OSError():
            return Failure(error.strerror or str(error))
        case _:
            return None


def _problems(problems: Sequence[object]) -> str:
    count = len(problems)
    return f"{count} problem{'' if count == 1 else 's'} in the configuration; `provisioner check` shows them too"
