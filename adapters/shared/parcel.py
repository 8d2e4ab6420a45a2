"""A drone's directory as it is sent along with a request for the drone: what can be sent, and how it is packed."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping

from provisioner.model import Bootstrap

OURS = ".site"
"""In the drone's directory: what is the site's."""
_LONGEST_VALUE = 100_000
_FILE = re.compile(r"[A-Za-z0-9_@+=.-]{1,128}(/[A-Za-z0-9_@+=.-]{1,128}){0,8}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class UnfitError(ValueError):
    """An order that can never be asked for: why."""


def sendable(bootstrap: Bootstrap) -> None:
    """Check that a bootstrap can be sent along. Raises UnfitError."""
    for name in bootstrap.files:
        if not _FILE.fullmatch(name) or set(name.split("/")) & {".", "..", OURS}:
            raise UnfitError(f"a drone cannot take a file along as {name[:60]!r}")
    for name, value in bootstrap.env.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value or not _in_bytes(value):
            raise UnfitError(f"{name[:60]!r} cannot be an environment variable")


def _in_bytes(value: str) -> bool:
    try:
        return len(value.encode("utf-8", "surrogateescape")) < _LONGEST_VALUE
    except UnicodeEncodeError:
        return False


def packed(content: Mapping[str, bytes]) -> bytes:
    """Return a tar archive that is equal for equal content: no times, no account names.

    The last file in it (``.site/whole``) tells that it is complete: tar does not always report a truncated archive.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, what in [*sorted(content.items()), (f"{OURS}/whole", b"")]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(what), 0o600
            archive.addfile(entry, io.BytesIO(what))
    return out.getvalue()


def exports(env: Mapping[str, str]) -> list[str]:
    """Lines of a shell script that set these variables, whatever is in them."""
    return [f"export {name}=" + "'" + value.replace("'", "'\\''") + "'" for name, value in env.items()]
