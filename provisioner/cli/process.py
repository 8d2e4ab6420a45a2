"""One command line from beginning to end: the one place where failures become exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from provisioner.cli.exits import Exit, failure_of
from provisioner.cli.quick import quick


def run_process(argv: Sequence[str] | None = None) -> int:
    """As the process itself: a reader of our output that goes away ends us quietly, as it does any Unix tool."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere  # closed by who started us (`>&-`)
    code = run_verb(argv)
    try:
        sys.stderr.flush()
    except OSError:  # a log on a full disk: what could not be written must not become the exit code
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    if code == Exit.INTERRUPTED:
        # A KeyboardInterrupt that came up inside an `exec` of a text (a dataclass being made) is remembered by CPython
        # 3.11, handled or not: as `python -m` it would end by SIGINT instead of with our code.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code


def run_verb(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Only a bug shows a traceback."""
    try:
        code = Exit.OK if quick(sys.argv[1:] if argv is None else argv) else _parse_and_run(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        return _tell(*failure.lines, code=failure.code)


def _parse_and_run(argv: Sequence[str] | None) -> int:
    from provisioner.cli.root import parse_and_run

    return parse_and_run(argv)


def _tell(*lines: str, code: Exit) -> int:
    from provisioner.formatting import sanitize

    first, *rest = [sanitize(part) for line in lines for part in line.splitlines()] or ["failed"]
    print(f"provisioner: {first}", file=sys.stderr)
    for line in rest:
        print(f"  {line}", file=sys.stderr)
    return code
