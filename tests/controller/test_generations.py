"""Members decide by the generation of the configuration on record, whatever their own files say."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from provisioner import controller_process
from provisioner.config import ConfigError
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Membership
from provisioner.controller.loop import Controller
from provisioner.controller_process import ControllerProcess
from provisioner.model import Service
from provisioner.reloading import Adapters, ConfigNotAppliedError, prepared, reloads
from provisioner.shared_configuration import SharedConfiguration
from provisioner.store import StoreError, StoreHeldError
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


class Thread(ComputeThread):
    """Calls of the database, of which the next ones may fail."""

    def __init__(self) -> None:
        super().__init__(threaded=False)
        self.failing = 0
        self.calls = Counter[str]()

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        assert isinstance(work, partial)
        self.calls[work.func.__name__] += 1
        if self.failing > 0:
            self.failing -= 1
            raise StoreError("no route to host")
        return work(*args)


class Desk:
    """A member without a process: its lease, its files, and the adapters that it has connected."""

    def __init__(self, path: Path, lease_s: float = 600.0) -> None:
        self.path = path
        self.thread = Thread()
        self.leases = LeaseStore(database_of(path.parent.parent / "record.db"), "proc")
        member = Member(path.parent.name, json.dumps({}))
        self.member = Membership(self.leases, self.thread, member, lease_s)
        self.shared = SharedConfiguration(path, None, asyncio.Event(), self.member)
        hangup = self.shared.hangup
        self.process = ControllerProcess(path, None, asyncio.Event(), hangup, False, False)
        self.member.files = self.shared.note

    async def starts(self, stack: AsyncExitStack) -> Desk:
        settings = await self.shared.begin()
        self.adapters, self.overlay = await self.process._connected(stack, settings)
        await self.member.beat()
        return self

    async def leads(self, stack: AsyncExitStack) -> Controller:
        """Return the controller of the term."""
        store = self.process._store(self.adapters.settings, self.member.term)
        await stack.enter_async_context(store)
        return await self.process._controller(
            stack, self.adapters, self.overlay, store, self.member
        )

    async def stands_by(self) -> None:
        while True:
            await self.process._stand_by(self.shared, self.adapters, self.overlay, None)

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
        self.shared.took_over()

    async def hears(self) -> bool:
        """Give a sign of life, and take over what is in force."""
        await self.member.beat()
        return await self.shared.follow(self.adapters)

    async def is_told_to_reload(self) -> None:
        self.shared.hangup.set()
        await self.shared.read()
        self.shared.hangup.clear()

    def states(self) -> list[str]:
        """Return the states of the generations on record, the newest first."""
        with Reader(self.path.parent.parent / "record.db")._open() as sql:
            query = "SELECT state FROM configurations ORDER BY generation DESC"
            return [state for (state,) in sql.execute(query).fetchall()]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


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
    assert again.states() == ["proposed", "adopted", "adopted"], "somebody goes back"
    await one.member.beat()
    await one.decides()
    assert one.most == 1 and one.shared.note() == ""
    assert await other.hears() and other.most == 1
    assert [each.generation for each in other.leases.generations] == [3, 2], "not that of others"


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


async def test_a_standby_takes_over_a_site_that_is_down_and_can_lead(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Its polls connect the site later."""
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    other = await Desk(write(tmp_path / "other")).starts(stack)
    site = write(tmp_path / "one", most=2).parent / "site-here.yaml"
    site.write_text(site.read_text().replace("start_s: 0", "start_s: 1"))
    await one.is_told_to_reload()
    await one.decides()
    (tmp_path / "here" / "down").touch()
    assert await other.hears() and other.most == 2 and other.member.unfit == ""
    await one.member.leave()
    await other.member.beat()
    assert other.member.leads and await other.shared.follow(other.adapters)
    (tmp_path / "here" / "down").unlink()
    assert (await other.adapters.sites["here"].poll()).site == "here"


async def test_a_standby_asks_again_for_a_generation_that_it_could_not_read(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    other = await Desk(write(tmp_path / "other"), lease_s=0.2).starts(stack)
    write(tmp_path / "one", most=2)
    await one.is_told_to_reload()
    await one.decides()
    await other.member.beat()
    other.thread.failing = 1
    task = asyncio.create_task(other.stands_by())
    await until(lambda: "no route to host" in other.member.unfit)
    await until(lambda: other.most == 2)
    assert other.member.unfit == ""
    task.cancel()


async def test_a_generation_that_was_adopted_when_the_term_ended_is_taken_over_afterwards(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    controller = await one.leads(stack)
    site = write(tmp_path / "one", most=2).parent / "site-here.yaml"
    site.write_text(site.read_text().replace("start_s: 0", "start_s: 1"))
    one.shared.hangup.set()
    async with controller.between_ticks:
        task = asyncio.create_task(reloads(one.shared, controller, one.adapters))
        await until(lambda: one.states() == ["adopted", "adopted"])
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
    assert one.most == 1 and one.shared.number == 1
    assert [name for name, _ in one.adapters.leaving] == ["here"]
    assert await one.shared.follow(one.adapters)
    assert one.most == 2 and one.shared.number == 2 and one.adapters.leaving == []


@pytest.mark.parametrize("failing", [1, 10**9])
async def test_a_leader_without_its_database_rejects_nothing_and_waits(
    tmp_path: Path, stack: AsyncExitStack, failing: int
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    controller = await one.leads(stack)
    other = await Desk(write(tmp_path / "other", most=2)).starts(stack)
    await one.member.beat()
    one.thread.failing = failing
    with capture_logs() as logs:
        task = asyncio.create_task(reloads(one.shared, controller, one.adapters))
        begun = time.monotonic()
        await until(lambda: logs)
        await asyncio.sleep(0.3)
        most = 2 * (time.monotonic() - begun) + 4
    assert other.states() == ["proposed", "adopted"] and one.most == 1
    assert {each["event"] for each in logs} == {"config.reload_failed"}
    assert one.thread.calls.total() < 10 + most
    one.thread.failing = 0
    await until(lambda: one.most == 2)
    assert other.states() == ["adopted", "adopted"]
    task.cancel()


async def test_a_leader_reads_its_files_when_the_database_answers_again(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    controller = await one.leads(stack)
    write(tmp_path / "one", most=2)
    one.thread.failing = 1
    one.shared.hangup.set()
    task = asyncio.create_task(reloads(one.shared, controller, one.adapters))
    await until(lambda: one.most == 2)
    assert one.states() == ["adopted", "adopted"] and not one.shared.hangup.is_set()
    task.cancel()


class LosesLease(SharedConfiguration):
    """The configuration of a member that loses its lease while it connects sites."""

    async def follow(self, adapters: Adapters) -> bool:
        followed = await super().follow(adapters)
        self.member.orderly = True
        await self.member.leave()
        return followed


async def test_a_member_that_loses_its_lease_while_it_connects_sites_opens_no_record(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    assert one.member.leads
    shared = LosesLease(one.path, None, one.shared.hangup, one.member)
    await shared.read()
    with capture_logs() as logs:
        async with asyncio.timeout(30):
            assert await one.process._lead_term(shared, one.adapters, one.overlay, None) == 0
    assert "lease.term_failed" not in [each["event"] for each in logs]
    assert one.member.changed.is_set()


async def test_a_standby_reads_the_servers_by_one_connection(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    await one.decides()
    other = await Desk(write(tmp_path / "other")).starts(stack)
    seen = Counter[str]()

    class CountedReader(Reader):
        def __init__(self, path: Any) -> None:
            super().__init__(path)
            seen["readers"] += 1
            monkeypatch.setattr(self.database, "disconnect", partial(seen.update, ["closed"]))

        def drones(self, *args: Any, **kwargs: Any) -> Any:
            seen["polls"] += 1
            return super().drones(*args, **kwargs)

    monkeypatch.setattr(controller_process, "Reader", CountedReader)
    settings = other.adapters.settings
    policy = replace(settings.policy, services=(Service("cms"),))
    other.adapters.settings = replace(settings, policy=policy)
    polls = other.process._stand_by(other.shared, other.adapters, other.overlay, None)
    task = asyncio.create_task(polls)
    await until(lambda: seen["polls"] > 2)
    assert seen["readers"] == 1 and not seen["closed"]
    other.member.news.set()
    await task
    assert seen["closed"] == 1


async def test_files_that_are_not_utf_8_are_refused_with_their_place(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    one = await Desk(write(tmp_path / "one")).starts(stack)
    (tmp_path / "one" / "site-here.yaml").write_bytes("# Universit\u00e4t".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"site-here\.yaml:1:12: byte 0xe4 is not UTF-8"):
        await one.is_told_to_reload()
