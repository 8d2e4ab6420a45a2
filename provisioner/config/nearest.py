"""The nearest valid name for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid name that ``word`` was probably meant to be; None if none is near."""
    plain = {name.lower().replace("-", "_"): name for name in sorted(valid)}
    near = get_close_matches(word.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else None


def choices(word: str, valid: Iterable[str]) -> str:
    """What to write instead of ``word``, as the end of a message: the nearest name, or all of them."""
    names = list(valid)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean `{near}`?"
    if not names:
        return "there is none at all"
    return f"known here: {', '.join(names)}"
