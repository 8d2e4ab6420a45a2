"""Members decide by the generation of the configuration on record, whatever their own files say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from provisioner.config import ConfigError
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Membership
from provisioner.reloading import Adapters, ConfigNotAppliedError, prepared
from provisioner.shared_configuration import SharedConfiguration
from provisioner.store import StoreHeldError
from provisioner.store.database import database_of
from provisioner.store.lease import LeaseStore, Member, Term
from provisioner.store.reader import Reader
from tests.controller.test_process import ADAPTER, SITE, host

__all__ = ["host"]

CONTROLLER = """\
controller: proc
store: {path: ../record.db}
overlay: {adapter: embedded, options: {path: ../queue.db}}
sites: [site-*.yaml]
policy: {interval: 300ms, active_interval: 100ms, idle_timeout: 10min}
ha: {lease: 2s}
"""


def write(directory: Path, most: int = 1, more: str = "", controller: str = CONTROLLER) -> Path:
    """Write the files of a member. Return its controller file."""
    directory.mkdir(exist_ok=True)
    root = directory.parent / "here"
    (root / "drones").mkdir(parents=True, exist_ok=True)
    text = SITE.replace("NAME", "here").replace("ROOT", str(root)).replace("START", "0")
    text = text.replace("max_drones: 1", f"max_drones: {most}")
    (directory / "site-here.yaml").write_text(text + more)
    (directory / "provisioner.yaml").write_text(controller)
    return directory / "provisioner.yaml"


class Desk:
    """A member without a process: its lease, its files, and the adapters that it has connected."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.leases = LeaseStore(database_of(path.parent.parent / "record.db"), "proc")
        member = Member(path.parent.name, json.dumps({}))
        self.member = Membership(self.leases, ComputeThread(threaded=False), member, 600.0)
        self.shared = SharedConfiguration(path, None, asyncio.Event(), self.member)
        self.member.files = self.shared.note

    async def starts(self, stack: AsyncExitStack) -> Desk:
        settings = await self.shared.begin()
        self.adapters = await stack.enter_async_context(Adapters(settings))
        await self.member.beat()
        return self

    @property
    def most(self) -> int | None:
        return self.adapters.settings.policy.sites["here"].max_drones

    async def decides(self) -> None:
        """Take over what is proposed, or refuse it, as the controller of a leader does."""
        try:
            new = await self.shared.load()
            _, opened = await prepared(self.adapters, new, {"here": 1})
        except (ConfigError, ConfigNotAppliedError) as error:
            await self.shared.settle(str(error))
            return
        await self.shared.settle()
        self.adapters.become(new, opened)

    async def hears(self) -> bool:
        """Give a sign of life, and take over what is in force."""
        await self.member.beat()
        return await self.shared.follow(self.adapters)

    async def is_told_to_reload(self) -> None:
        self.shared.hangup.set()
        await self.shared.read()
        self.shared.hangup.clear()

    def states(self) -> list[str]:
        return [each.state.value for each in self.leases.generations]


Start = Callable[[str], AsyncIterator[Desk]]


@pytest.fixture
async def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncExitStack]:
    """The host of members, on which the adapter of the site is installed."""
    (tmp_path / "files_site.py").write_text(ADAPTER)
    egg = tmp_path / "files-1.0.dist-info"
    egg.mkdir()
    (egg / "METADATA").write_text("Metadata-Version: 2.1\nName: files\nVersion: 1.0\n")
    (egg / "entry_points.txt").write_text("[provisioner.sites]\nfiles = files_site:Files\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with AsyncExitStack() as found:
        yield found


async def test_the_first_member_adopts_its_files_and_others_have_the_same(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    assert one.member.leads and one.states() == ["proposed"]
    await one.decides()
    assert one.states() == ["adopted"]
    other = await Desk(write(tmp_path / "other")).starts(stack)
    assert not other.member.leads and await other.hears()
    assert other.states() == ["adopted"] and other.shared.note() == ""


async def test_new_files_of_a_standby_are_in_force_once_the_leader_adopts_them(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    other = await Desk(write(tmp_path / "other", most=2)).starts(stack)
    assert other.most == 1 and other.states() == ["proposed", "adopted"]
    assert "its files are proposed (generation 2)" in other.shared.note()
    await one.member.beat()
    assert one.member.news.is_set()
    await one.decides()
    assert one.most == 2 and await other.hears() and other.most == 2
    assert other.shared.note() == "" and "generation 1; generation 2" in one.shared.note()
    again = await Desk(write(tmp_path / "one")).starts(stack)
    assert again.most == 2 and again.states() == ["adopted", "adopted"], "its files are old"
    await again.is_told_to_reload()
    assert again.states() == ["adopted", "adopted"], "they are still old"
    write(tmp_path / "other", most=1)
    await other.is_told_to_reload()
    assert other.states()[0] == "proposed", "somebody went back"


async def test_files_that_the_leader_cannot_take_over_are_rejected_with_the_reason(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    moved = CONTROLLER.replace("queue.db", "elsewhere.db")
    other = await Desk(write(tmp_path / "other", controller=moved)).starts(stack)
    await one.member.beat()
    await one.decides()
    assert one.states() == ["rejected", "adopted"]
    assert await other.hears() and "rejected (generation 2) overlay:" in other.shared.note()
    await other.member.beat()
    (_, listed) = Reader(tmp_path / "record.db").lease()[1]
    assert "overlay:" in listed.files and listed.lacks == ()
    await other.is_told_to_reload()
    assert other.states() == ["proposed", "adopted"], "asked again, with a new number"
    assert other.leases.generations[0].generation == 3


async def test_a_member_that_cannot_load_what_is_in_force_says_why_and_does_not_lead(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """As an older version that does not know a setting."""
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    other = await Desk(write(tmp_path / "other")).starts(stack)
    await other.hears()
    (text,) = one.adapters.settings.sites
    files = {"provisioner.yaml": CONTROLLER, "site-here.yaml": text.path.read_text() + "new: 1\n"}
    one.leases.propose(json.dumps(files), "new", "newer")
    assert one.member.term is not None
    one.leases.settle(one.member.term, 2, "")
    assert not await other.hears()
    await other.member.beat()
    lease, members = Reader(tmp_path / "record.db").lease()
    (mine,) = [each for each in members if each.name == "other"]
    assert not mine.is_ready(lease) and "generation 2 of the configuration" in mine.lacks[0]
    one.leases.leave(one.member.member, releases=True)
    await other.member.beat()
    assert not other.member.leads
    late = await Desk(write(tmp_path / "other")).starts(stack)
    assert not late.member.leads and "generation 2" in late.member.unfit


async def test_new_files_apply_at_the_start_of_the_only_member(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Also those that a leader could not take over, such as another overlay."""
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    await one.member.leave()
    moved = CONTROLLER.replace("queue.db", "elsewhere.db")
    again = await Desk(write(tmp_path / "one", controller=moved)).starts(stack)
    assert again.member.leads and await again.shared.follow(again.adapters)
    assert again.adapters.settings.overlay.options.path.name == "elsewhere.db"
    await again.decides()
    assert again.states() == ["adopted", "adopted"] and again.shared.number == 2


async def test_a_former_leader_decides_about_no_configuration(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    term = one.member.term
    assert term is not None
    for former in (Term(term.epoch, "other"), Term(term.epoch - 1, term.nonce), None):
        with pytest.raises(StoreHeldError):
            one.leases.settle(former, 1, "")
    assert one.states() == ["proposed"]
