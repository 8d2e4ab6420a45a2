"""Accounts of drones: none may be the controller's own, or one that can read a secret of the controller."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from provisioner.config.credentials import credentials_of

_PUBLIC = re.compile(r"(ca|certificate|\.pub)$")
"""Ends the names of credentials that anybody may read."""


def account_problem(account: str, record: Path, secrets: Iterable[Path]) -> str:
    """Return why drones must not run under an account of this host; empty if they may.

    ``account``: its name; empty for the controller's own. Root may check what another account will
    run: the owner of the record, or of the directory that it will be made in, counts as the
    controller too.
    """
    if not account:
        return "drones would run under the controller's own account"
    try:
        user = pwd.getpwnam(account)
    except KeyError:
        return ""  # it owns nothing here
    place = next(path for path in (record, *record.parents) if path.exists()).stat()
    if user.pw_uid in (0, os.geteuid(), place.st_uid):
        return f"drones would run under {account}, which is root or the controller's own account"
    groups = os.getgrouplist(account, user.pw_gid)
    for path in (record, *secrets):
        if _can_read(path, user.pw_uid, groups, place.st_gid):
            return f"drones would run under {account}, which can read {path}"
    return ""


def secret_files(options: BaseModel) -> Iterator[Path]:
    """Yield the files with secrets that options name."""
    for each in credentials_of(options):
        path = Path(each.source.removeprefix("file "))
        if path.is_absolute() and not _PUBLIC.search(each.name):
            yield path


def _can_read(path: Path, uid: int, groups: Collection[int], new_gid: int) -> bool:
    """Return True if modes let an account read a file; one that is still to be made is its group's, ``new_gid``."""
    try:
        if not all(
            _permits(above.stat(), 1, uid, groups) for above in path.parents if above.exists()
        ):
            return False
        return _permits(path.stat(), 4, uid, groups) if path.exists() else new_gid in groups
    except OSError:  # it is closed to us as well
        return False


def _permits(found: os.stat_result, bit: int, uid: int, groups: Collection[int]) -> bool:
    if found.st_uid == uid:
        bit <<= 6
    elif found.st_gid in groups:
        bit <<= 3
    return bool(found.st_mode & bit)
