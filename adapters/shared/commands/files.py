"""Private files for tools, put on the host that the tools run on, as a tar stream to a shell."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping

from adapters.shared.commands.runner import Runner
from adapters.shared.parcel import archive
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind

_PUT_FILE_NAME = re.compile(r"[A-Za-z0-9_@+=-][A-Za-z0-9._@+=-]*(/[A-Za-z0-9_@+=-][A-Za-z0-9._@+=-]*)*")
_PUT_DIRECTORY = re.compile(r"/?[A-Za-z0-9_.][A-Za-z0-9._+@=-]*(/[A-Za-z0-9_.][A-Za-z0-9._+@=-]*)*")
_MARK = "put."
"""A file of this name and the digest says that all of it is there."""

_PUT = f"""\
set -eu
umask 077
dir=$1 digest=$2
there() {{ [ -e "$dir/{_MARK}$digest" ]; }}
if there; then cat >/dev/null; exit 0; fi
mkdir -p -- "$(dirname -- "$dir")"
new=$(mktemp -d -- "$dir.new.XXXXXX")
old=$new.old
trap 'rm -rf -- "$new" "$old"' EXIT
tar -xof - -C "$new"
: >"$new/{_MARK}$digest"
# Nothing can be given the name of a directory that holds anything: of those who put the same, one does, all others see
# it. Another content goes away first.
for try in 1 2 3 4 5; do
    if mv -T -- "$new" "$dir" 2>/dev/null || there; then exit 0; fi
    mv -T -- "$dir" "$old" 2>/dev/null || :
    rm -rf -- "$old"
done
mv -T -- "$new" "$dir"
"""
_REMOVE = 'exec rm -rf -- "$1"'


async def put(
    runner: Runner, directory: str, files: Mapping[str, bytes], *, executable: Collection[str] = (), deadline_s: float
) -> None:
    """Make ``directory`` (absolute, or below the account's home; mode 0700) hold these files and nothing else.

    Files by relative name, mode 0600, 0700 for those in ``executable``. It is there whole or not at all; putting the
    same again does nothing. UnavailableError if it cannot be done: a put may be tried again. ValueError for a bad name.
    """
    for name in files:
        if not _PUT_FILE_NAME.fullmatch(name) or ".." in name.split("/") or name.startswith(_MARK):
            raise ValueError(f"`{name[:60]}` is no name for a file that goes along")
    packed = archive(dict(sorted(files.items())), executable)
    digest = hashlib.sha256(packed).hexdigest()
    argv = ["sh", "-c", _PUT, "put", _checked(directory), digest]
    done = await runner.run(argv, stdin=packed, deadline_s=deadline_s)
    if done.code:
        raise UnavailableError(f"files for {directory} cannot be put there: {done.said}", FaultKind.CONFIG)


async def remove(runner: Runner, directory: str, *, deadline_s: float) -> None:
    """Take the directory away; one that is not there is no error. UnavailableError if it cannot be done."""
    done = await runner.run(["sh", "-c", _REMOVE, "remove", _checked(directory)], deadline_s=deadline_s)
    if done.code:
        raise UnavailableError(f"{directory} cannot be removed: {done.said}")


def _checked(directory: str) -> str:
    if not _PUT_DIRECTORY.fullmatch(directory) or ".." in directory.split("/"):
        raise ValueError(f"`{directory[:60]}` is no name for a directory of ours")
    return directory
