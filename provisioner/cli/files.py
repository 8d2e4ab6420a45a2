"""Snapshots and plans in files: written whole or not at all, read with a plain word when they are something else."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from provisioner.cli.exits import Failure
from provisioner.model import Plan, Snapshot

SNAPSHOT_SCHEMA = "provisioner.snapshot/1"
PLAN_SCHEMA = "provisioner.plan/1"


def snapshot_text(snapshot: Snapshot) -> str:
    """A snapshot as the JSON of ``provisioner snapshot``."""
    from provisioner import __version__
    from provisioner.serialization import to_plain

    tree = {"schema": SNAPSHOT_SCHEMA, "version": __version__, "snapshot": to_plain(snapshot)}
    return json.dumps(tree, indent=1) + "\n"


def read_snapshot(path: Path) -> Snapshot:
    """The snapshot in a file, with or without the envelope. Raises :class:`Failure`."""
    found = _read(path, Snapshot, "snapshot", SNAPSHOT_SCHEMA)
    assert isinstance(found, Snapshot)
    return found


def read_plan(path: Path) -> Plan:
    """The plan in a file, as ``plan -o json`` writes it or bare. Raises :class:`Failure`."""
    found = _read(path, Plan, "plan", PLAN_SCHEMA)
    assert isinstance(found, Plan)
    return found


def _read(path: Path, kind: type, key: str, schema: str) -> object:
    from pydantic import ValidationError

    from provisioner.serialization import from_json

    try:
        tree: Any = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise Failure(f"{path}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Failure(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    if not isinstance(tree, dict):
        raise Failure(f"{path}: not a {key}")
    told = tree.get("schema")
    if told is not None and told != schema:
        raise Failure(f"{path}: schema {str(told)[:80]!r}, but this version reads {schema}")
    try:
        return from_json(kind, json.dumps(tree.get(key, tree)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Failure(f"{path}: not a {key}: {place or 'top'}: {first['msg']} ({error.error_count()} in all)") from None


def write_whole(path: Path, text: str) -> None:
    """Put ``text`` into ``path`` in one step: a reader sees the old file or the new one."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:  # it would name a file that nobody asked for
        raise Failure(f"{path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
