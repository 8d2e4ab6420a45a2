"""Models that jobs announce to call (`WantsInference`): names out of texts that anybody may have written."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_ANNOUNCED_MODELS = 16
"""Number of models that one job may announce; further ones are left out."""
_ANNOUNCED_MODEL = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}(:[A-Za-z0-9][A-Za-z0-9._-]{0,19})?"
)


def announced_models(told: object) -> tuple[str, ...]:
    """Return the models in a text with commas, or in a list of texts, in alphabetical order; no other words."""
    texts: Iterable[object] = told if isinstance(told, list | tuple) else (told,)
    words = (word.strip() for text in texts if isinstance(text, str) for word in text.split(","))
    found = {word for word in words if _ANNOUNCED_MODEL.fullmatch(word)}
    return tuple(sorted(found)[:MOST_ANNOUNCED_MODELS])
