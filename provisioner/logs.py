"""Log lines on stderr: for people, as JSON, or for the journal with its priorities."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    import structlog
    from structlog.typing import EventDict, Processor


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"
    JOURNAL = "journal"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Syslog priorities, which journald reads from a prefix ``<4>`` (sd-daemon(3))."""


class Stderr:
    """Target of log lines. One that cannot be written (full disk, reader gone) must not end the service."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


def log_to_stderr(level: LogLevel, form: LogFormat | None) -> None:
    """Write log lines to stderr in ``form``; without one for the journal if stderr leads there, else for people."""
    import structlog

    form = form or (LogFormat.JOURNAL if _leads_to_journal() else LogFormat.CONSOLE)
    processors: list[Processor] = [structlog.processors.add_log_level]
    time = structlog.processors.TimeStamper(fmt="iso", utc=True)
    match form:
        case LogFormat.JSON:
            processors += [
                time,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(default=str),
            ]
        case LogFormat.JOURNAL:
            processors.append(_for_journal)
        case LogFormat.CONSOLE:
            processors += [time, _for_people(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.value.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Stderr())),
        cache_logger_on_first_use=False,
    )


@cache
def _for_people(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    """Return the renderer of lines ``time level event key=value``, with plain tracebacks.

    The pretty ones hold the values of all local variables, among them users' names, and take
    seconds to make.
    """
    import structlog

    return structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=14, exception_formatter=structlog.dev.plain_traceback
    )


def _for_journal(logger: object, name: str, event: EventDict) -> str:
    """Return lines with the level as their priority; the journal adds the time itself."""
    priority = PRIORITIES.get(str(event.pop("level", "info")), 6)
    text = _for_people(colors=False)(logger, name, event)
    return "\n".join(f"<{priority}>{line.rstrip()}" for line in text.splitlines())


def _leads_to_journal() -> bool:
    """Return whether systemd connected stderr to the journal: it names the device and inode in JOURNAL_STREAM."""
    with suppress(OSError, ValueError):
        seen = os.fstat(sys.stderr.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{seen.st_dev}:{seen.st_ino}"
    return False
