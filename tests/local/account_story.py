"""A site whose drones have an account of their own, played by an ordinary account: see test_account.py."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from adapters.local import LocalSite
from adapters.local.account import DroneAccount
from adapters.local.drones import directories
from provisioner.adapter_tests import eventually
from provisioner.model import (
    Bootstrap,
    DroneId,
    EndKind,
    RemoteDrone,
    RemoteState,
    StartOrder,
    StopOrder,
)
from tests.local.drones import HERE, SMALL, config

SPY = b"""#!/bin/sh
trap 'echo asked to leave; exit 3' TERM
id -un; echo "${DRONE_ID:-none} $(cat token) $(umask)"
for file in "$SECRET" /proc/*/environ; do grep -az . "$file" 2>/dev/null; done | tr '\\0' '\\n' >seen
echo $(grep -c 'SECRET-OF-CONTROLLER' seen) secrets seen
setsid sleep 1000 &
echo it left >outcome
touch ready; while :; do sleep 0.1; done
"""
STUBBORN = (
    b"#!/bin/sh\ntrap '' TERM\nsetsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &\n"
    b"while :; do sleep 1; done\n"
)


def order(serial: int, script: bytes, secret: Path) -> StartOrder:
    bootstrap = Bootstrap(script, files={"token": b"TOKEN"}, env={"SECRET": str(secret)})
    return StartOrder(DroneId(f"acc{os.getpid()}-abcd-{serial}"), SMALL, 600.0, 1.0, bootstrap)


async def story(root: Path, account: str) -> None:
    secret = root.parent / "secret"
    secret.touch(mode=0o600)
    secret.write_text("SECRET-OF-CONTROLLER\n")
    polite, stubborn = order(1, SPY, secret), order(2, STUBBORN, secret)
    site = LocalSite(
        HERE, config(root, account=account, retain_finished="0s"), (SMALL,), f"acc{os.getpid()}"
    )

    async def listed(one: StartOrder) -> RemoteDrone | None:
        return (await site.poll()).drones.get(one.drone_id)

    async def ended(one: StartOrder) -> RemoteDrone | None:
        found = await listed(one)
        return found if found is not None and found.state is RemoteState.ENDED else None

    async def said(one: StartOrder, text: str) -> bool:
        log = root / one.drone_id / "log"
        return log.exists() and text in log.read_text()

    async with site:
        findings = list(await site.audit(None))  # type: ignore[arg-type]
        assert not findings, findings
        results = await site.start([polite, stubborn])
        print(results)
        await eventually("the spy has looked", lambda: said(polite, "secrets seen"), 30)
        print((root / polite.drone_id / "log").read_text())
        assert (await listed(polite)).state is RemoteState.RUNNING  # type: ignore[union-attr]
        await site.stop(
            [StopOrder(polite.drone_id, ""), StopOrder(stubborn.drone_id, "", kill=True)]
        )
        end = (await eventually("it has ended", lambda: ended(polite), 30)).end
        assert end is not None and (end.kind, end.exit_code, end.message) == (
            EndKind.STOPPED,
            3,
            "it left",
        ), end
        assert await listed(stubborn) is None or await ended(stubborn)

        async def removed() -> bool:
            await site.poll()
            return not list(directories(root))

        await eventually("their directories are gone", removed, 30)
        left = root / ".new-1999999999-1-killed"
        left.mkdir(mode=0o733)
        left.chmod(0o733)  # as a controller that was killed while it made the directory of a drone
        DroneAccount(account).unpack(left / "drone", {"token": b"TOKEN"})
        assert (left / "drone").stat().st_uid != os.geteuid()
        await site.poll()
        assert os.listdir(root) == [".lock"]


if __name__ == "__main__":
    asyncio.run(story(Path(sys.argv[1]), sys.argv[2]))
