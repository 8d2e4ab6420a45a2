"""A drone's environment, and its directory as it is sent along with a request for the drone."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Collection, Mapping

from provisioner.config.models import mistake_at
from provisioner.model import Bootstrap

OURS = ".site"
"""Subdirectory of the drone's directory for the files of the site."""
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MAX_VALUE_BYTES = 100_000
_SENDABLE_FILE = re.compile(r"[A-Za-z0-9_@+=.-]{1,128}(/[A-Za-z0-9_@+=.-]{1,128}){0,8}")


class UnfitError(ValueError):
    """An order that can never be carried out; the message says why."""


def check_environment(env: dict[str, str], *, reserved: re.Pattern[str]) -> dict[str, str]:
    """Validate the option ``env`` of a site: plain names, values on one line, no variable that the site sets."""
    for name, value in env.items():
        if not VARIABLE_NAME.fullmatch(name) or not value.isprintable():
            what = f"`{name[:40]}` is not a valid environment variable"
            raise mistake_at(name, f"{what}: it needs a plain name and a value on one line")
        if reserved.fullmatch(name):
            raise mistake_at(name, f"`{name}` is set by the site: remove it")
    return env


def sendable(bootstrap: Bootstrap) -> None:
    """Check that a bootstrap can be sent along. Raises UnfitError."""
    for name in bootstrap.files:
        if not _SENDABLE_FILE.fullmatch(name) or set(name.split("/")) & {".", "..", OURS}:
            raise UnfitError(f"a drone cannot take a file along as {name[:60]!r}")
    for name, value in bootstrap.env.items():
        try:
            fits = "\0" not in value and len(value.encode("utf-8", "surrogateescape")) < _MAX_VALUE_BYTES
        except UnicodeEncodeError:
            fits = False
        if not fits or not VARIABLE_NAME.fullmatch(name):
            raise UnfitError(f"{name[:60]!r} cannot be an environment variable")


def archive(files: Mapping[str, bytes], executable: Collection[str] = ()) -> bytes:
    """Return a tar archive of private files that is equal for equal content: no times, no account names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o700 if name in executable else 0o600
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def packed(content: Mapping[str, bytes]) -> bytes:
    """Return the archive of a drone's directory.

    The last file in it (``.site/whole``) tells that it is complete: tar does not always report a truncated archive.
    """
    return archive({**dict(sorted(content.items())), f"{OURS}/whole": b""})


def exports(env: Mapping[str, str]) -> list[str]:
    """Return lines of a shell script that set these variables, whatever is in them."""
    return [f"export {name}=" + "'" + value.replace("'", "'\\''") + "'" for name, value in env.items()]
