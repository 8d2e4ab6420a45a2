"""The JSON form of a report, with its version; its schema is in the module beside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from provisioner import serialization
from provisioner.simulator.results import SCHEMA, Result


@dataclass(frozen=True, slots=True)
class Report:
    """Replays by policy, one for each seed."""

    schema: Literal[1]
    """Version of this form."""
    runs: Mapping[str, tuple[Result, ...]]


def to_json(runs: Mapping[str, Sequence[Result]]) -> str:
    """``runs`` as compact JSON. ``ValueError`` for a number that JSON does not know (infinite, not a number)."""
    report = Report(1, {policy: tuple(results) for policy, results in runs.items()})
    return json.dumps(serialization.to_plain(report), allow_nan=False, separators=(",", ":"))


def from_json(text: str | bytes) -> dict[str, tuple[Result, ...]]:
    """What :func:`to_json` wrote. ``ValueError`` for anything else; its text says what is wrong, and where."""
    try:
        version = json.loads(text)["schema"]
    except (ValueError, TypeError, KeyError):
        raise ValueError("no report of a replay: a JSON object with the key 'schema' is wanted") from None
    if version != SCHEMA:
        raise ValueError(f"a report of version {version!r}; this provisioner reads {SCHEMA}: write it anew")
    try:
        return dict(serialization.from_json(Report, text).runs)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"no report of a replay: {where}: {first['msg']}") from None
