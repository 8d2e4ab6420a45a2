"""Why a call of the bindings failed: credentials, or silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import htcondor2

from adapters.shared.printing import printable
from provisioner.interfaces import AuthError, UnavailableError

_DENIED = ("authenticat", "denied", "not authorized", "no token")
_DATE = re.compile(r"^[\d/]+ [\d:.]+ ")


class Reasons:
    """Why the bindings fail: their exceptions do not tell credentials from silence, but their log does."""

    def __init__(self) -> None:
        htcondor2.enable_log()
        self._log = Path(htcondor2.param["TOOL_LOG"])

    @contextmanager
    def told(self, whom: str) -> Iterator[None]:
        """Raises what went wrong with ``whom`` as AuthError or UnavailableError."""
        begun = self._size()
        try:
            yield
        except (htcondor2.HTCondorException, OSError) as error:
            words = printable(f"{error}: {self._since(begun)}", 400)
            if any(sign in words.lower() for sign in _DENIED):
                raise AuthError(f"{whom}: {words}") from None
            raise UnavailableError(f"{whom}: {words}") from None

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _since(self, begun: int) -> str:
        """The last lines that were written since, without their dates."""
        if self._size() <= begun:
            return "no reason given"
        with self._log.open(errors="replace") as log:
            log.seek(begun)
            lines = [_DATE.sub("", line).strip() for line in log.read(20_000).splitlines()]
        return "; ".join(dict.fromkeys(lines[-4:]))
