"""The queue file between accounts: whoever opens it first leaves nothing that others cannot open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.embedded import queue

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changes accounts, which needs root")

MEMBER, OWNER, GROUP, OTHER_GROUP = 60001, 60002, 60003, 60004


def as_account(uid: int, gid: int, work: Callable[[], object]) -> str:
    """Return what ``work`` returns or raises in a child of this process under another account, in the group as well."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([GROUP])
            os.setgid(gid)
            os.setuid(uid)
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A queue of the owner's in a directory of the group."""
    place = tmp_path / "shared"
    place.mkdir()
    os.chown(place, OWNER, GROUP)
    place.chmod(0o770)
    for above in list(place.parents)[:-2]:
        above.chmod(above.stat().st_mode | 0o011)
    path = place / "queue.db"
    queue.create(path)
    os.chown(path, OWNER, GROUP)
    path.chmod(0o660)
    return path


def test_a_member_who_may_not_write_leaves_no_file(shared: Path) -> None:
    shared.chmod(0o640)
    said = as_account(MEMBER, OTHER_GROUP, lambda: queue.submit(shared, ["true"], owner="ann"))
    assert "OperationalError" in said
    assert sorted(each.name for each in shared.parent.iterdir()) == ["queue.db"]
    assert (
        as_account(OWNER, OTHER_GROUP + 1, lambda: queue.submit(shared, ["true"], owner="ann"))
        == "[1]"
    )


def test_the_owner_can_use_the_queue_while_a_member_has_it_open(shared: Path) -> None:
    def member() -> str:
        """Hold the queue open, and have another child, of the owner, use it meanwhile."""
        kept = queue.connect(shared)
        kept.execute("SELECT count(*) FROM job").fetchone()
        os.write(to_owner, b".")
        os.read(from_owner, 1)
        return "held"

    from_member, to_owner = os.pipe()
    from_owner, to_member = os.pipe()
    owner = os.fork()
    if not owner:
        os.read(from_member, 1)
        said = as_account(
            OWNER, OTHER_GROUP + 1, lambda: queue.submit(shared, ["true"], owner="ann")
        )
        (shared.parent / "said").write_text(said)
        os.write(to_member, b".")
        os._exit(0)
    assert as_account(MEMBER, OTHER_GROUP, member) == "held"
    os.waitpid(owner, 0)
    assert (shared.parent / "said").read_text() == "[1]"
