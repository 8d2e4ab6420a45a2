"""The overlay of an HTCondor pool: polls by a worker process, drains by the tool, a token for each drone.

The probes of `provisioner check --live` are here too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from adapters.htcondor.client_directory import ClientDirectory
from adapters.htcondor.overlay.drain import Drainer, DrainOrders, read_every_s
from adapters.htcondor.overlay.history import HistoryPoller
from adapters.htcondor.overlay.schedds import SCHEDD_ANSWER_TIMEOUT_S, asked
from adapters.htcondor.overlay.settings import DroneTokenMode, HTCondorConfig
from adapters.htcondor.overlay.work import ClaimWitnesses
from adapters.htcondor.tokens import InvalidTokenError, TokenSigner, explain_token, read_token, user_of
from adapters.shared.commands.local import LocalRunner
from adapters.shared.printing import printable
from provisioner import drone
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AdapterError, AuditFinding, AuthError, UnavailableError
from provisioner.model import (
    Bootstrap,
    DrainMode,
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OverlayView,
    StartOrder,
)
from provisioner.worker_process import WorkerProcess

_ADMITTED_S = 3600.0
"""A drone that has not come by then is not expected any more."""
_REMOVAL_S = 20.0
"""Longest time for the removal of ads of dead drones."""
_REMOVAL_TOKEN_S = 600.0
"""Lifetime of the token with which they are removed, where tokens are signed here."""


def client_directory(config: HTCondorConfig) -> ClientDirectory:
    """Return the directory of the overlay's client."""
    return ClientDirectory("the overlay", config.collector, config.token, config.token_directory, config.client_config)


def drone_identities(config: HTCondorConfig) -> str:
    """Return the identity of each drone, with ``{drone}`` for its id; empty if a drone's identity does not have it."""
    own = config.drone_token_mode is DroneTokenMode.SIGNING_KEY and "{drone}" in config.drone_user
    return f"{config.drone_user}@{config.trust_domain}" if own else ""


@dataclass(frozen=True, slots=True)
class DroneToken:
    """A token of a drone: the one of all drones, or one that is signed when it is read."""

    config: HTCondorConfig
    drone_id: DroneId
    lifetime_s: float

    @classmethod
    def of(cls, config: HTCondorConfig, order: StartOrder) -> Self:
        """Return the token of a drone that is ordered."""
        walltime_s = order.type.walltime_s
        life_s = walltime_s + config.drone_token_margin if walltime_s else config.drone_token_lifetime
        return cls(config, order.drone_id, order.comes_within_s + life_s + order.grace_s)

    def read(self) -> str:
        """Return the token. SecretUnreadableError if there is none."""
        config = self.config
        if config.drone_token_mode is DroneTokenMode.SIGNING_KEY:
            assert config.drone_signing_key is not None  # validated
            signer = TokenSigner(config.drone_signing_key, config.drone_signing_key_id, config.trust_domain)
            return signer.token(user_of(config.drone_user, self.drone_id), time.time(), self.lifetime_s)
        assert config.drone_token is not None  # validated
        return config.drone_token.read()


class HTCondorOverlay:
    """Jobs that wait in the pool's schedds, and drones that join it as startds of their own."""

    Config = HTCondorConfig

    def __init__(self, config: HTCondorConfig, controller: str) -> None:
        self._config, self._controller = config, controller
        self._directory: ClientDirectory | None = None
        self._pool: WorkerProcess | None = None
        self._completions: HistoryPoller | None = None
        self._orders: DrainOrders | None = None
        self._drainer: Drainer | None = None
        self._view: OverlayView | None = None
        self._silent: tuple[str, ...] = ()
        """Schedds that did not answer at the newest poll, those that never have as well."""
        self._witnesses = ClaimWitnesses()
        self._admitted: dict[DroneId, float] = {}
        """Drones that no poll has shown yet, and when they were admitted (monotonic)."""
        self._readers = 0
        """Drones that ask for orders, or will: as of the newest poll, so that drones of one tick may be alike."""

    async def __aenter__(self) -> Self:
        config = self._config
        self._directory = client_directory(config)
        self._pool = WorkerProcess(
            "adapters.htcondor.overlay.pool:PoolPoller",
            config.collector,
            self._controller,
            config.schedds,
            config.constraint,
            config.owner_attribute,
            config.negotiation_period,
            config.collector_memory,
            config.slot_weight,
            config.drone_config,
            drone_identities(config),
            str(self._directory.path / "schedds"),
            min(SCHEDD_ANSWER_TIMEOUT_S, config.deadline / 2),
            env=self._directory.env,
        )
        self._completions = HistoryPoller(config, self._controller, self._directory)
        self._orders = DrainOrders(config.collector, config.trust_domain, self._directory)
        self._drainer = Drainer(config.drain_tool, self._directory.env, config.drain_deadline, self._orders)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._pool is not None:
            await self._pool.close()
        if self._completions is not None:
            await self._completions.close()
        if self._orders is not None:
            await self._orders.close()
        if self._directory is not None:
            self._directory.close()
        self._pool = self._completions = self._directory = self._drainer = self._orders = None

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        """Poll the pool.

        UnavailableError if the collector or all schedds did not answer in time, or AuthError. A schedd that does not
        answer beside others is left out: see ``unheard`` of the view.
        """
        if self._pool is None or self._completions is None or self._directory is None:
            raise UnavailableError("the overlay is not connected")
        self._directory.refresh()
        gpus_only = all(kind.gpu_milli for kind in types)
        polled: OverlayView | AdapterError
        async with asyncio.TaskGroup() as group:
            pending = group.create_task(self._completions.newest(gpus_only, self._silent))
            try:
                kinds, deadline_s = tuple(types), self._config.deadline
                answer = await self._pool.call("poll_with_users", kinds, deadline_s=deadline_s)
                polled, users, self._silent = answer
                self._witnesses.note(users, time.time())
            except AdapterError as error:
                whom = " ".join(asked(self._directory.path / "schedds"))
                polled = UnavailableError(f"{whom}: no answer within {deadline_s:g} s") if whom.strip() else error
        if isinstance(polled, AuthError):
            raise await asyncio.to_thread(explained, polled, self._config)
        if isinstance(polled, AdapterError):
            raise polled
        history = pending.result()
        there = {slot.drone_id for slot in polled.slots}
        if self._drainer is not None:
            await self._drainer.forget(there)
        self._count_readers(there)
        self._view = replace(
            polled,
            completions=history.completions,
            notices=(*polled.notices, *history.notices),
            mishaps=self._witnesses.believed((*polled.mishaps, *history.failures), time.time()),
        )
        return self._view

    def _count_readers(self, there: Collection[DroneId]) -> None:
        """Count the drones ``there`` and those that are to come.

        A thousand that start at once ask as often as if there were no others.
        """
        since = time.monotonic() - _ADMITTED_S
        self._admitted = {i: at for i, at in self._admitted.items() if i not in there and at > since}
        self._readers = len(there) + len(self._admitted)

    async def probe(self, *, here: bool) -> Sequence[AuditFinding]:
        """Return what would keep drains from working, and drones from starting ``here``."""
        if self._directory is None or self._orders is None:
            raise UnavailableError("the overlay is not connected")
        self._directory.refresh()
        missing = list(no_condor(self._config)) if here else []
        refused = await self._orders.rehearse(DroneId(f"{self._controller}-check"))
        if refused is None:
            return missing  # order ads reach every drone, whatever the tool can do
        return [*(await probe(self._config, self._directory.env) or [no_orders(refused)]), *missing]

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        """Drain by the slot names of the last poll. A drone that was not in it has left already: that is success."""
        if self._drainer is None or self._directory is None:
            raise UnavailableError("the overlay is not connected")
        if self._view is None:
            fault = Fault(FaultKind.DOWN, "no poll of the pool yet: its slot is unknown", 0.0)
            return [OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault) for drone_id in drone_ids]
        self._directory.refresh()
        names = {slot.drone_id: slot.name for slot in self._view.slots}
        return await self._drainer.drain({each: names.get(each) for each in drone_ids}, mode, reason)

    async def forget(self, ended_at: Mapping[DroneId, float]) -> Sequence[OrderResult]:
        """Have the collector drop the ads of drones that ended at these times.

        A drone's own token is what may do that. The client with it lives for this call alone.
        """
        if not ended_at:
            return []
        token = DroneToken(self._config, next(iter(ended_at)), _REMOVAL_TOKEN_S)
        directory = ClientDirectory("the drones", self._config.collector, token, None, self._config.client_config)
        child = WorkerProcess(
            "adapters.htcondor.overlay.dead_ads:DeadAdRemover", self._config.collector, env=directory.env
        )
        try:
            await asyncio.to_thread(directory.refresh)
            await child.call("remove", dict(ended_at), deadline_s=_REMOVAL_S)
        except AdapterError as error:
            fault = Fault(error.kind, str(error), time.time())
            return [OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault) for drone_id in ended_at]
        finally:
            await child.close()
            directory.close()
        return [OrderResult(drone_id, OrderOutcome.OK) for drone_id in ended_at]

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        """Return the drone script, its token as file ``token``, and the operator's lines as ``extra.conf``."""
        try:
            token = await asyncio.to_thread(DroneToken.of(self._config, order).read)
        except SecretUnreadableError as error:
            raise AuthError(f"token for drones: {error}") from None
        files = {"token": f"{token}\n".encode()}
        env = {
            "DRONE_COLLECTOR": self._config.collector,
            "DRONE_TRUST_DOMAIN": self._config.trust_domain,
            "DRONE_TOKEN_FILE": "token",
            "DRONE_KEPT_VRAM_MIB": str(order.kept_vram_mib),
            "DRONE_KEPT_S": str(round(order.kept_s)),
            "DRONE_AVOIDS": order.avoids,
        }
        if identity := drone_identities(self._config):
            env["DRONE_IDENTITY"] = user_of(identity, order.drone_id)
        identities = self._orders.identities() if self._orders is not None else ()
        if identities:
            env["DRONE_ORDERS_FROM"] = ",".join(identities)
            env["DRONE_ORDER_S"] = str(round(read_every_s(self._readers)))
            self._admitted[order.drone_id] = time.monotonic()
        if self._config.condor_prefix:
            env["CONDOR_PREFIX"] = self._config.condor_prefix
        if self._config.drone_config:
            files["extra.conf"] = self._config.drone_config.encode()
        return Bootstrap(script=drone.script("condor_drone.sh"), env=env, files=files)


PING_TIMEOUT_S = 20.0
_MORE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def probe(config: HTCondorConfig, env: Mapping[str, str]) -> list[AuditFinding]:
    """Return what would keep drains from working. ``env``: that of our client's tools. Changes nothing.

    Either way of draining is enough: the tool with ADMINISTRATOR, or order ads with DAEMON at the collector.
    """
    tool = shutil.which(config.drain_tool, path=env.get("PATH"))
    ping = Path(tool).with_name("condor_ping") if tool is not None else None
    scopes = _scopes(config)
    why: list[str] = []
    for wanted, setting in (("ADMINISTRATOR", "ALLOW_ADMINISTRATOR"), ("DAEMON", "COLLECTOR.ALLOW_DAEMON")):
        if wanted == "ADMINISTRATOR" and tool is None:
            why.append(f"`{config.drain_tool}` is not on PATH: install HTCondor's tools, or set `drain_tool`")
            continue
        if scopes is not None and wanted not in scopes:
            why.append(f"our token is not good for {wanted}")
            continue
        code, said = await _run([str(ping), "-type", "collector", wanted], env) if ping and ping.exists() else (0, "")
        if code == 0:
            return []
        why.append(f"no {wanted} at the collector ({said}): add the token's identity to `{setting}`, `condor_reconfig`")
    return [AuditFinding("", "drain", f"drains would be refused: {'; '.join(why)}")]


def _scopes(config: HTCondorConfig) -> frozenset[str] | None:
    """Return the scopes that the controller's token is limited to; None for all, and where no single token tells."""
    try:
        return read_token(config.token.read()).scopes if config.token is not None else None
    except (SecretUnreadableError, InvalidTokenError):
        return None


def no_orders(refused: Fault) -> AuditFinding:
    """Return what it means that the collector does not take our order ads, where the drain tool may be used."""
    message = "drones that cannot reach this host would not drain: the collector does not take our order ads. Add the "
    repair = "token's identity to `COLLECTOR.ALLOW_DAEMON`, `condor_reconfig`; a limited token needs `-authz DAEMON`"
    return AuditFinding("", "drain", f"{message}{repair} ({refused.message})")


def no_condor(config: HTCondorConfig) -> list[AuditFinding]:
    """Return whether HTCondor's programs are missing on this host, looked for as the drone script does."""
    prefix = Path(config.condor_prefix)
    if config.condor_prefix:
        if any((prefix / below / "condor_master").exists() for below in ("usr/sbin", "sbin")):
            return []
        return [
            AuditFinding(
                "",
                "htcondor",
                f"no condor_master below {prefix}: drones on this host could not start. Correct `condor_prefix`",
            )
        ]
    if shutil.which("condor_master", path=f"{os.environ.get('PATH', '')}:{_MORE_PATH}"):
        return []
    return [
        AuditFinding(
            "",
            "htcondor",
            "condor_master is neither on PATH nor in /usr/sbin: drones on this host could not "
            "start. Install HTCondor, or set `condor_prefix` to the directory above its `usr/sbin`",
        )
    ]


async def _run(command: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    try:
        done = await LocalRunner(env).run(command, deadline_s=PING_TIMEOUT_S)
    except UnavailableError as error:
        return 1, str(error)
    return done.code, printable(" ".join((done.out + done.err)[-600:].decode(errors="replace").split()), 300)


def explained(error: AuthError, config: HTCondorConfig) -> AuthError:
    """Return an error of authentication with the content of our own token.

    HTCondor says the same of an expired token, of another pool's and of garbage.
    """
    if "authenticat" not in str(error).lower() or config.token is None:
        return error
    why = explain_token(config.token, config.trust_domain, time.time())
    return AuthError(f"{why}. The pool says: {error}", error.kind) if why else error
