"""The overlay of an HTCondor pool: polls by a worker process, drains by the tool, a token for each drone.

The probes of `provisioner check --live` are here too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from adapters.htcondor.overlay import accounting
from adapters.htcondor.overlay.drain import COLLECTOR_ADS, Drainer, DrainOrders, read_every_s
from adapters.htcondor.overlay.history import HISTORY_READER, PAST_TIMEOUT_S, HistoryPoller
from adapters.htcondor.overlay.pool import PolledPool
from adapters.htcondor.overlay.schedds import asked
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.htcondor.overlay.work import ClaimWitnesses, confirmed_faults
from adapters.htcondor.tokens import (
    ClientDirectory,
    InvalidTokenError,
    TokenSigner,
    explain_token,
    read_token,
)
from adapters.shared.commands.local import LocalRunner
from adapters.shared.printing import printable
from adapters.shared.starts import done, failed, rejected
from provisioner import drone, model
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import (
    AdapterError,
    AuditFinding,
    AuthError,
    UnavailableError,
)
from provisioner.model import Bootstrap, DroneId, OrderResults, OtherDrones, OverlayView
from provisioner.worker_process import WorkerProcess

__all__ = ["HTCondorConfig", "HTCondorOverlay"]

_ADMITTED_S = 3600.0  # a drone that has not come by then is not expected any more
_REMOVAL_S = 20.0  # longest time for the removal of ads of dead drones
# lifetime of the token with which they are removed, where tokens are signed here
_REMOVAL_TOKEN_S = 600.0


def client_directory(config: HTCondorConfig) -> ClientDirectory:
    return ClientDirectory("the overlay", config)


def drone_token(config: HTCondorConfig, drone_id: DroneId, lifetime_s: float) -> str:
    """Return a token of a drone: the one of all drones, or one signed now. SecretUnreadableError if there is none."""
    if config.drone_token_mode == "signing-key":
        assert config.drone_signing_key is not None  # validated
        signer = TokenSigner(
            config.drone_signing_key, config.drone_signing_key_id, config.trust_domain
        )
        return signer.token(config.drone_user.replace("{drone}", drone_id), time.time(), lifetime_s)
    assert config.drone_token is not None  # validated
    return config.drone_token.read()


class _Connection:
    """Processes and files of an entered overlay."""

    def __init__(self, config: HTCondorConfig, controller: str) -> None:
        self.directory = client_directory(config)
        self.memory = self.directory.path / "schedds"
        self.pool = WorkerProcess(
            "adapters.htcondor.overlay.pool:PoolPoller",
            config,
            controller,
            str(self.memory),
            env=self.directory.env,
        )
        self.history = HistoryPoller(config, controller, self.directory)
        self.others = WorkerProcess(
            "adapters.htcondor.overlay.others:OtherDroneReader",
            config.collector,
            controller,
            env=self.directory.env,
        )
        self.orders = DrainOrders(config.collector, config.trust_domain, self.directory)
        self.drainer = Drainer(
            config.drain_tool, self.directory.env, config.drain_deadline, self.orders
        )

    async def close(self) -> None:
        for each in (self.pool, self.history, self.others, self.orders):
            await each.close()
        self.directory.close()


class HTCondorOverlay:
    """Jobs that wait in the pool's schedds, and drones that join it as startds of their own."""

    Config = HTCondorConfig

    def __init__(self, config: HTCondorConfig, controller: str) -> None:
        self._config = config
        self._controller = controller
        self._connection: _Connection | None = None
        self._view: OverlayView | None = None
        self._silent: tuple[str, ...] = ()
        """Schedds that did not answer at the newest poll, those that never have as well."""
        self._witnesses = ClaimWitnesses()
        self._admitted: dict[DroneId, float] = {}
        """Drones that no poll has shown yet, and when they were admitted (monotonic)."""
        self._readers = 0
        """Drones that ask for orders, or will: as of the newest poll, so that drones of one tick may be alike."""

    async def __aenter__(self) -> Self:
        self._connection = _Connection(self._config, self._controller)
        return self

    async def __aexit__(self, *exc: object) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.close()

    def _connected(self) -> _Connection:
        """Return the connection, with the tokens in the client's directory as they are now."""
        if self._connection is None:
            raise UnavailableError("the overlay is not connected")
        self._connection.directory.refresh()
        return self._connection

    async def poll(self, types: Sequence[model.DroneType]) -> OverlayView:
        """Poll the pool.

        UnavailableError if the collector or all schedds did not answer in time, or AuthError. A
        schedd that does not answer beside others is left out: see ``unheard`` of the view.
        """
        connection = self._connected()
        deadline_s = self._config.deadline
        gpus_only = all(kind.gpu_milli for kind in types)
        answer: PolledPool | AdapterError
        async with asyncio.TaskGroup() as group:
            pending = group.create_task(connection.history.newest(gpus_only, self._silent))
            try:
                answer = await connection.pool.call("poll", tuple(types), deadline_s=deadline_s)
            except AdapterError as error:
                whom = asked(connection.memory)
                answer = (
                    UnavailableError(f"{whom}: no answer within {deadline_s:g} s")
                    if whom
                    else error
                )
        if isinstance(answer, AuthError):
            raise await asyncio.to_thread(explained, answer, self._config)
        if isinstance(answer, AdapterError):
            raise answer
        view, users, self._silent, faults, ran = answer
        self._witnesses.note(users, time.time())
        history = pending.result()
        there = {slot.drone_id for slot in view.slots}
        confirmed = confirmed_faults(faults, ran, history.completions, history.succeeded)
        await connection.drainer.forget(there)
        self._count_readers(there)
        self._view = replace(
            view,
            completions=history.completions,
            completions_at=history.at,
            notices=(*view.notices, *history.notices),
            mishaps=self._witnesses.believed(
                (*view.mishaps, *history.failures, *self._witnesses.of_lone_users(confirmed)),
                time.time(),
            ),
        )
        return self._view

    async def other_drones(self) -> Sequence[OtherDrones]:
        """Return the drones of TARDIS, glideinWMS and other controllers, by their slots in the collector."""
        connection = self._connected()
        found: Sequence[OtherDrones] = await connection.others.call(
            "drones", deadline_s=self._config.deadline
        )
        return found

    async def past_runs(self, since: float) -> tuple[Sequence[model.CompletedJob], Sequence[str]]:
        """Read the schedds' histories back to ``since``, in a process of its own."""
        env = self._connected().directory.env
        child = WorkerProcess(HISTORY_READER, self._config, self._controller, env=env)
        try:
            found: tuple[Sequence[model.CompletedJob], Sequence[str]] = await child.call(
                "past", since, deadline_s=PAST_TIMEOUT_S
            )
            return found
        finally:
            await child.close()

    def _count_readers(self, there: Collection[DroneId]) -> None:
        """Count the drones ``there`` and those to come: a thousand that start at once would ask as often as one."""
        since = time.monotonic() - _ADMITTED_S
        self._admitted = {
            i: at for i, at in self._admitted.items() if i not in there and at > since
        }
        self._readers = len(there) + len(self._admitted)

    async def probe(self, *, here: bool) -> Sequence[AuditFinding]:
        """Return what would keep drains from working, and drones from starting ``here``."""
        connection = self._connected()
        missing = list(no_condor(self._config)) if here else []
        if self._config.accounting:
            missing += await self._missing_attributes(connection.directory.env)
        refused = await connection.orders.rehearse(DroneId(f"{self._controller}-check"))
        if refused is None:
            return missing  # order ads reach every drone, whatever the tool can do
        message = "drones that cannot reach this host would not drain: the collector takes order ads late or not at all"
        allow = "Add the token's identity to `COLLECTOR.ALLOW_DAEMON`; a limited token needs `-authz DAEMON`"
        unreachable = AuditFinding("", "drain", f"{message} ({refused.message}). {allow}")
        return [*(await probe(self._config, connection.directory.env) or [unreachable]), *missing]

    async def _missing_attributes(self, env: Mapping[str, str]) -> Sequence[AuditFinding]:
        config = self._config
        child = WorkerProcess(
            "adapters.htcondor.overlay.accounting:MachineAttributesReader",
            config.collector,
            config.schedds,
            env=env,
        )
        try:
            found: Sequence[AuditFinding] = await child.call("findings", deadline_s=config.deadline)
            return found
        finally:
            await child.close()

    def render_accounting(self, types: Sequence[model.DroneType]) -> Mapping[str, str]:
        """Return the pool's lines, and the configuration of AUDITOR's collector and of its APEL plug-in."""
        return accounting.files(self._config, types)

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: model.DrainMode, reason: str
    ) -> OrderResults:
        """Drain by the slot names of the last poll. A drone that was not in it has left already: that is success."""
        connection = self._connected()
        if self._view is None:
            message = "no poll of the pool yet: its slot is unknown"
            return [rejected(drone_id, model.FaultKind.DOWN, message) for drone_id in drone_ids]
        names = {slot.drone_id: slot.name for slot in self._view.slots}
        return await connection.drainer.drain(
            {each: names.get(each) for each in drone_ids}, mode, reason
        )

    async def forget(self, ended_at: Mapping[DroneId, float]) -> OrderResults:
        """Have the collector drop the ads of drones that ended then, which only a drone's own token may do."""
        if not ended_at:
            return []
        config = self._config
        first = next(iter(ended_at))
        directory = ClientDirectory(
            "the drones", config, lambda: drone_token(config, first, _REMOVAL_TOKEN_S)
        )
        child = WorkerProcess(COLLECTOR_ADS, config.collector, env=directory.env)
        try:
            await asyncio.to_thread(directory.refresh)
            await child.call("remove", dict(ended_at), deadline_s=_REMOVAL_S)
        except AdapterError as error:
            return [failed(drone_id, error) for drone_id in ended_at]
        finally:
            await child.close()
            directory.close()
        return list(map(done, ended_at))

    async def bootstrap(self, order: model.StartOrder) -> Bootstrap:
        """Return the drone script, its token as file ``token``, and the operator's lines as ``extra.conf``."""
        config = self._config
        walltime_s = order.type.walltime_s
        life_s = (
            walltime_s + config.drone_token_margin if walltime_s else config.drone_token_lifetime
        )
        lifetime_s = order.comes_within_s + life_s + order.grace_s
        try:
            token = await asyncio.to_thread(drone_token, config, order.drone_id, lifetime_s)
        except SecretUnreadableError as error:
            raise AuthError(f"token for drones: {error}") from None
        files = {"token": f"{token}\n".encode()}
        env = {
            "DRONE_COLLECTOR": config.collector,
            "DRONE_TRUST_DOMAIN": config.trust_domain,
            "DRONE_TOKEN_FILE": "token",
        }
        if identity := config.drone_identities:
            env["DRONE_IDENTITY"] = identity.replace("{drone}", order.drone_id)
        if self._connection is not None and (identities := self._connection.orders.identities()):
            env["DRONE_ORDERS_FROM"] = ",".join(identities)
            env["DRONE_ORDER_S"] = str(round(read_every_s(self._readers)))
            self._admitted[order.drone_id] = time.monotonic()
        if config.condor_prefix:
            env["CONDOR_PREFIX"] = config.condor_prefix
        if config.drone_config:
            files["extra.conf"] = config.drone_config.encode()
        return Bootstrap(script=drone.script("condor_drone.sh"), env=env, files=files)


PING_TIMEOUT_S = 20.0
_MORE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def probe(config: HTCondorConfig, env: Mapping[str, str]) -> list[AuditFinding]:
    """Return what would keep both ways of draining from working: the tool, and order ads. Changes nothing."""
    tool = shutil.which(config.drain_tool, path=env.get("PATH"))
    ping = Path(tool).with_name("condor_ping") if tool is not None else None
    scopes = None  # all, and where no single token tells
    with contextlib.suppress(SecretUnreadableError, InvalidTokenError):
        scopes = read_token(config.token.read()).scopes if config.token is not None else None
    why: list[str] = []
    for wanted, setting in (
        ("ADMINISTRATOR", "ALLOW_ADMINISTRATOR"),
        ("DAEMON", "COLLECTOR.ALLOW_DAEMON"),
    ):
        if wanted == "ADMINISTRATOR" and tool is None:
            why.append(
                f"`{config.drain_tool}` is not on PATH: install HTCondor's tools, or set `drain_tool`"
            )
        elif scopes is not None and wanted not in scopes:
            why.append(f"the controller's token does not allow {wanted}")
        elif ping is None or not ping.exists():
            return []
        else:
            try:
                done = await LocalRunner(env).run(
                    [str(ping), "-type", "collector", wanted], deadline_s=PING_TIMEOUT_S
                )
                said = " ".join((done.out + done.err)[-600:].decode(errors="replace").split())
                if done.code == 0:
                    return []
            except UnavailableError as error:
                said = str(error)
            allow = f"add the token's identity to `{setting}`, `condor_reconfig`"
            why.append(f"no {wanted} at the collector ({printable(said, 300)}): {allow}")
    return [AuditFinding("", "drain", f"drains would be refused: {'; '.join(why)}")]


def no_condor(config: HTCondorConfig) -> list[AuditFinding]:
    """Return whether HTCondor's programs are missing on this host, looked for as the drone script does."""
    prefix = config.condor_prefix.replace("{arch}", os.uname().machine)
    path = f"{os.environ.get('PATH', '')}:{_MORE_PATH}"
    if shutil.which("condor_master", path=f"{prefix}/usr/sbin:{prefix}/sbin" if prefix else path):
        return []
    where = f"below {prefix}" if prefix else "on PATH or in /usr/sbin"
    repair = "Install HTCondor, or set `condor_prefix` to the directory above its `usr/sbin`"
    return [
        AuditFinding(
            "",
            "htcondor",
            f"no condor_master {where}: drones on this host could not start. {repair}",
        )
    ]


def explained(error: AuthError, config: HTCondorConfig) -> AuthError:
    """Return an error with what is wrong with our token: HTCondor says the same of expired ones and garbage."""
    if "authenticat" not in str(error).lower() or config.token is None:
        return error
    why = explain_token(config.token, config.trust_domain, time.time())
    return AuthError(f"{why}. The pool says: {error}", error.kind)
