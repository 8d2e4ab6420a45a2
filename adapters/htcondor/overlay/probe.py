"""Probes for `provisioner check --live`: is all there that the controller will need at the pool?"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.shared.htcondor import idtoken
from adapters.shared.printing import printable
from provisioner.config.units import SecretUnreadable
from provisioner.interfaces import AuditFinding, AuthError
from provisioner.model import Fault

PING_DEADLINE_S = 20.0
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
        return idtoken.read(config.token.read()).scopes if config.token is not None else None
    except (SecretUnreadable, idtoken.NoToken):
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
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PING_DEADLINE_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return 1, f"no answer within {PING_DEADLINE_S:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode or 0, printable(" ".join(said[-600:].decode(errors="replace").split()), 300)


def explained(error: AuthError, config: HTCondorConfig) -> AuthError:
    """Return an error of authentication with what our own token tells of it: HTCondor says the same of an expired
    token, of another pool's and of garbage."""
    if "authenticat" not in str(error).lower() or config.token is None:
        return error
    why = idtoken.blamed(config.token, config.trust_domain, time.time())
    return AuthError(f"{why}. The pool says: {error}", error.kind) if why else error
