"""Accounts of drones: none may be the controller's own, or one that can read a secret of the controller."""

from __future__ import annotations

import os
import pwd
import re
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from provisioner.config.credentials import credentials_of

_PUBLIC = re.compile(r"(ca|certificate|\.pub)$")
"""Ends the names of credentials that anybody may read."""
_ACL_USER, _ACL_GROUP, _ACL_MASK = 0x02, 0x08, 0x10
"""Tags of entries in the attribute of a POSIX ACL, which are tag, permissions and id."""


def account_problem(account: str, record: Path | None, secrets: Iterable[Path]) -> str:
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
    here = record or Path("/")
    place = next(path for path in (here, *here.parents) if path.exists()).stat()
    if user.pw_uid in (0, os.geteuid(), place.st_uid):
        return f"drones would run under {account}, which is root or the controller's own account"
    groups = os.getgrouplist(account, user.pw_gid)
    for path in (*([record] if record else ()), *secrets):
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
    """Return True if modes or ACLs let an account read a file; one still to be made is its group's, ``new_gid``."""
    try:
        if not all(_permits(above, 1, uid, groups) for above in path.parents if above.exists()):
            return False
        return _permits(path, 4, uid, groups) if path.exists() else new_gid in groups
    except OSError:  # it is closed to us as well
        return False


def _permits(path: Path, bit: int, uid: int, groups: Collection[int]) -> bool:
    found = path.stat()
    wanted = bit
    if found.st_uid == uid:
        wanted <<= 6
    elif found.st_gid in groups:
        wanted <<= 3
    return bool(found.st_mode & wanted) or _acl_permits(path, bit, uid, groups)


def _acl_permits(path: Path, bit: int, uid: int, groups: Collection[int]) -> bool:
    """Return True if an entry of a POSIX ACL that names the account, or a group of it, permits it."""
    try:
        acl = os.getxattr(path, "system.posix_acl_access")
    except OSError:  # it has none, or its file system knows none
        return False
    entries = list(struct.iter_unpack("<HHI", acl[4:]))
    mask = next((permitted for tag, permitted, _ in entries if tag == _ACL_MASK), 7)
    named = [
        permitted
        for tag, permitted, name in entries
        if (tag == _ACL_USER and name == uid) or (tag == _ACL_GROUP and name in groups)
    ]
    return any(permitted & mask & bit for permitted in named)
