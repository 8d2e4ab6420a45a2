"""What runs on a worker node: POSIX shell, no dependency of ours. Handed out as bytes, because sites ship it."""

from __future__ import annotations

import re
from importlib import resources

_INCLUDE = re.compile(rb"^.*# @include (?P<name>[a-z_]+\.sh)$", re.MULTILINE)


def script(name: str) -> bytes:
    """A drone's script, complete in one file: ``script("condor_drone.sh")``.

    A line that ends in ``# @include NAME`` is replaced by that file. Unreplaced it is a command that fails, so a
    script taken from the source tree as it is checks no GPU and therefore accepts no job.
    """
    text = resources.files(__package__).joinpath(name).read_bytes()
    return _INCLUDE.sub(lambda found: script(found["name"].decode()).rstrip(b"\n"), text)
