"""The configuration that members with one record share: the generation in force, and proposals of new files."""

from __future__ import annotations

import asyncio
import hashlib
import json
from functools import partial

import structlog

from provisioner.config import Settings, load, load_with_texts
from provisioner.controller.leadership import Membership, any_set
from provisioner.reloading import Adapters, ConfigNotAppliedError, OwnFiles, prepared
from provisioner.store import StoreError
from provisioner.store.generations import Generation, Verdict, adopted_of
from provisioner.values import define

log = structlog.get_logger()


@define
class SharedConfiguration(OwnFiles):
    """The generations on record as one member sees them, and its own files.

    A member proposes its files when it starts if no leader has adopted them yet, and at SIGHUP if
    they are not in force. The leader adopts or rejects them. A start leaves files of an older
    generation alone: somebody has changed those of another member.
    """

    member: Membership
    number: int = 0
    """Generation in force here."""
    _own: Settings | None = None
    _offered: Generation | None = None
    """Generation that the leader is about to take over."""
    _told: str = ""

    @property
    def digest(self) -> str:
        """Return the digest of the own files, as they were read last."""
        return self.member.leases.digest

    @property
    def adopted(self) -> Generation | None:
        """Return the generation in force."""
        return adopted_of(self._generations)

    @property
    def origin(self) -> str:
        if self._offered is None:
            return ""
        return f"generation {self._offered.generation}, proposed by {self._offered.proposed_by}: "

    def note(self) -> str:
        """Return why the own files are not in force; empty if they are."""
        adopted = self.adopted
        own = next((each for each in self._generations if each.digest == self.digest), None)
        if own is None or adopted is None or adopted.digest == self.digest:
            return ""
        if own.state is Verdict.ADOPTED:
            return (
                f"its files are those of generation {own.generation}; generation "
                f"{adopted.generation} of {adopted.proposed_by} is in force"
            )
        return f"its files are {own.state} (generation {own.generation}) {own.reason}".strip()

    async def begin(self) -> Settings:
        """Return the configuration to start with.

        While nobody leads, new files apply as those of a controller on its own, and are adopted
        when the term begins.
        """
        files = await self._read()
        self.member.unfit = "it has just begun"
        await self.member.beat()
        self.member.unfit = ""
        if not self._was_adopted():
            await self._propose(files)
        assert self._own is not None
        is_led = self.member.lease is not None and self.member.lease.is_held
        adopted = self.adopted
        if adopted is None or not (is_led or self._was_adopted()):
            return self._own
        try:
            found = await self._load(adopted)
        except Exception as error:
            self._reports_unfit(adopted, error)
            return self._own
        self.number = adopted.generation
        return found

    async def read(self) -> None:
        """Read the own files, and propose them unless they are in force."""
        files = await self._read()
        adopted = self.adopted
        if adopted is None or adopted.digest != self.digest:
            await self._propose(files)

    async def follow(self, adapters: Adapters) -> bool:
        """Take over the generation in force while this member gives no order. Return False if it cannot lead by it."""
        adopted = self.adopted
        try:
            if adopted and adopted.generation != self.number and not self._applies_own(adapters):
                new = await self._load(adopted)
                _, opened = await prepared(adapters, new, {}, connects=False)
                adapters.become(new, opened)
                self.number = adopted.generation
                log.info("config.reloaded", file=str(self.path), generation=self.number)
                await adapters.close_leaving()
        except Exception as error:  # whatever a file or an adapter causes
            assert adopted is not None
            self._reports_unfit(adopted, error)
            return False
        self.member.unfit = ""
        note = self.note()
        if note and note != self._told:
            log.warning("config.not_in_force", file=str(self.path), why=note)
        self._told = note
        return True

    async def changed(self) -> None:
        while not self.hangup.is_set() and self._proposal is None:
            self.member.news.clear()
            await any_set(self.hangup, self.member.news)

    async def load(self) -> Settings:
        self._offered = None
        if self.hangup.is_set():
            self.hangup.clear()
            try:
                await self.read()
            except StoreError:
                self.hangup.set()
                raise
        self._offered = self._proposal
        if self._offered is not None:
            return await self._load(self._offered)
        if note := self.note():
            raise ConfigNotAppliedError(note)
        assert self._own is not None
        return self._own

    async def settle(self, problems: str = "") -> None:
        if self._offered is None:
            return
        number = self._offered.generation
        settle = partial(self.member.leases.settle, self.member.term, number, problems)
        await self.member.thread.run(settle)

    def took_over(self) -> None:
        if self._offered is not None:
            self.number = self._offered.generation

    @property
    def _generations(self) -> tuple[Generation, ...]:
        return self.member.leases.generations

    @property
    def _proposal(self) -> Generation | None:
        return next((g for g in self._generations if g.state is Verdict.PROPOSED), None)

    async def _read(self) -> str:
        """Read the own files. Return their texts as they are on record."""
        self._own, texts = await asyncio.to_thread(load_with_texts, self.path, self.root)
        files = json.dumps(texts)
        self.member.leases.digest = hashlib.sha256(files.encode()).hexdigest()
        return files

    async def _propose(self, files: str) -> None:
        propose = self.member.leases.propose
        name = self.member.member.name
        await self.member.thread.run(partial(propose, files, self.digest, name))

    def _was_adopted(self) -> bool:
        return any(
            each.digest == self.digest and each.state is Verdict.ADOPTED
            for each in self._generations
        )

    def _applies_own(self, adapters: Adapters) -> bool:
        """Return True if this member leads by its own files, which it is about to adopt."""
        proposal = self._proposal
        is_own = proposal is not None and proposal.digest == self.digest
        return self.member.leads and is_own and adapters.settings is self._own

    async def _load(self, generation: Generation) -> Settings:
        """Return a generation as this member reads it. Raises ConfigError and ConfigNotAppliedError."""
        assert self._own is not None
        if generation.digest == self.digest:
            return self._own
        files = partial(self.member.leases.files, generation.generation)
        texts = json.loads(await self.member.thread.run(files))
        found = await asyncio.to_thread(load, self.path, root=self.root, texts=texts)
        if str(found.record) != str(self._own.record):
            raise ConfigNotAppliedError(f"it names another record: {found.record}")
        return found

    def _reports_unfit(self, generation: Generation, error: Exception) -> None:
        why = f"generation {generation.generation} of the configuration: {error}"
        if why != self.member.unfit:
            log.warning("config.rejected", file=str(self.path), problems=why[:4000])
        self.member.unfit = why
