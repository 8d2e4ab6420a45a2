"""``environment`` of a submit file taken apart into variables."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORD = re.compile(r"(?:[^\s']|'(?:[^']|'')*')+")
_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
OURS = re.compile(r"PROVISIONER_.*|DRONE_.*|_?CONDOR_.*|CUDA_VISIBLE_DEVICES", re.IGNORECASE)
"""Variables that our site sets itself."""


def variables(value: str) -> Iterator[tuple[str, str]]:
    """Name and value of each variable, in both of HTCondor's ways to write them: ``"A=1 B='x y'"`` and ``A=1;B=2``.

    An empty name: the text with it is no variable.
    """
    text = value.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        words = [_QUOTED.sub(_plain, word) for word in _WORD.findall(text[1:-1].replace('""', '"'))]
    else:
        words = [part.strip() for part in text.split(";") if part.strip()]
    for word in words:
        name, given, rest = word.partition("=")
        yield (name, rest) if given and _NAME.fullmatch(name) else ("", word)


def _plain(quoted: re.Match[str]) -> str:
    return quoted[1].replace("''", "'")
