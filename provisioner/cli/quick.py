"""``provisioner drones`` as a list, without the parser of options: loading that would take longer than the answer.

What scripts and dashboards ask again and again. A command line with anything out of the ordinary (another verb, an
unknown or incomplete option, a value that does not fit) is left alone, and the parser has its say on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from provisioner.cli.forms import Format, Pick, Show, Where

_FLAGS = {
    "--ended": "ended",
    "--all": "all_",
    "-a": "all_",
    "--no-header": "no_header",
    "--no-color": "no_color",
    "--local": "local",
}
_ONE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--config": ("config", Path),
    "-c": ("config", Path),
    "--store": ("store", Path),
    "--output": ("output", Format),
    "-o": ("output", Format),
    "--columns": ("columns", str),
    "--sort": ("sort", str),
    "--limit": ("limit", int),
    "-n": ("limit", int),
}
_MANY = {"--site": "sites", "--state": "states", "--type": "types", "--node": "nodes"}
_ENVIRONMENT = {"PROVISIONER_CONFIG": "--config", "PROVISIONER_STORE": "--store", "PROVISIONER_OUTPUT": "--output"}


def quick(argv: Sequence[str]) -> bool:
    """Answer ``argv`` if it is plain enough; False: nothing was done. Raises what the verb raises."""
    if not argv or argv[0] != "drones":
        return False
    given = _given(argv[1:])
    if given is None:
        return False
    from provisioner.cli.drone_list import Which, list_drones
    from provisioner.formatting import local_times
    from provisioner.model import DroneState

    def group(kind: type[Any]) -> Any:
        return kind(**{name: given.pop(name) for name in kind.__slots__ if name in given})

    try:
        given["states"] = [DroneState(state) for state in given.get("states", ())]
    except ValueError:
        return False
    where, show, pick = group(Where), group(Show), group(Pick)
    with local_times(show.local_times):
        list_drones(where, show, pick, Which(**given))
    return True


def _given(words: Sequence[str]) -> dict[str, Any] | None:
    """Options by field, those of the environment included; None if the parser had better look."""
    found: dict[str, Any] = {}
    pairs = [
        word for name, option in _ENVIRONMENT.items() if (value := os.environ.get(name)) for word in (option, value)
    ]
    rest = iter([*pairs, *words])
    for word in rest:
        option, equals, tail = word.partition("=") if word.startswith("--") else (word, "", "")
        if option in _FLAGS and not equals:
            found[_FLAGS[option]] = True
            continue
        value = tail if equals else next(rest, "")
        if not value or (value.startswith("-") and option != "--sort") or option not in {*_ONE, *_MANY}:
            return None
        if option in _MANY:
            found.setdefault(_MANY[option], []).append(value)
            continue
        field, of = _ONE[option]
        try:
            found[field] = of(value)
        except ValueError:
            return None
    return found
