"""Configuration, credentials and the drain tool, with a script in the place of the tool."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.htcondor.overlay import HTCondorConfig, HTCondorOverlay, client_directory
from adapters.htcondor.overlay.drain import Drainer, DrainOrders, slot_name
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import (
    DrainMode,
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    StartOrder,
)

ONE, TWO = DroneId("kit-1"), DroneId("kit-2")
KIND = DroneType("lab", "a100", 1000, 1, 1, 1)
ORDER = StartOrder(ONE, KIND, 60.0, 10.0)
GOOD = {ONE: "slot1@kit-1@node7.example.org"}


def options(tmp_path: Path, **more: Any) -> HTCondorConfig:
    token = tmp_path / "token"
    token.write_text("secret-of-the-controller\n")
    (tmp_path / "drone").write_text("secret-of-the-drones\n")
    return HTCondorConfig.model_validate(
        {
            "collector": "pool.example.org:9618",
            "trust_domain": "pool.example.org",
            "token": {"file": str(token)},
            "drone_token": {"file": str(tmp_path / "drone")},
            **more,
        }
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"collector": "<127.0.0.1:9618>;reboot"}, "collector"),
        ({"constraint": "Owner =="}, "not a ClassAd expression"),
        ({"token": "eyJhbGci"}, "must not be in the configuration"),
        ({"token": None}, "`token` or `token_directory` is wanted"),
    ],
)
def test_wrong_options_are_refused_with_a_repair(
    tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        options(tmp_path, **wrong)


def test_the_client_directory_is_private_follows_rotation_and_goes_away(tmp_path: Path) -> None:
    more = tmp_path / "tokens.d"
    more.mkdir()
    (more / "pool-b").write_text("second\n")
    directory = client_directory(
        options(tmp_path, token_directory=str(more), client_config="NO_DNS = True")
    )
    directory.refresh()
    kept = directory.path / "tokens"
    secrets = {"token": "secret-of-the-controller\n", "d-pool-b": "second\n"}
    assert {f.name: f.read_text() for f in kept.iterdir()} == secrets
    for path, mode in (
        (directory.path, 0o700),
        (kept, 0o700),
        (kept / "token", 0o600),
        (kept / "d-pool-b", 0o600),
    ):
        assert stat.S_IMODE(path.stat().st_mode) & ~mode == 0, path
    assert "NO_DNS = True" in (directory.path / "condor_config").read_text()
    (more / "pool-b").unlink()
    (tmp_path / "token").write_text("rotated")
    directory.refresh()
    assert {f.name: f.read_text() for f in kept.iterdir()} == {"token": "rotated\n"}
    (tmp_path / "token").unlink()
    with pytest.raises(AuthError, match="No such file"):
        directory.refresh()
    directory.close()
    assert not directory.path.exists()


def test_the_client_directory_is_made_anew_when_the_host_has_tidied_it_up(tmp_path: Path) -> None:
    directory = client_directory(options(tmp_path))
    directory.refresh()
    before = {f: f.read_text() for f in directory.path.rglob("*") if f.is_file()}
    shutil.rmtree(directory.path)
    directory.refresh()
    assert {f: f.read_text() for f in directory.path.rglob("*") if f.is_file()} == before
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    shutil.rmtree(directory.path)
    directory.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="own directory"):
        directory.refresh()
    directory.path.unlink()


def test_its_environment_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "CONDOR_CONFIG",
        "_CONDOR_COLLECTOR_HOST",
        "_condor_SEC_TOKEN_DIRECTORY",
        "CONDOR_INHERIT",
    ):
        monkeypatch.setenv(name, "/elsewhere")
    directory = client_directory(options(tmp_path))
    ours = {k: v for k, v in directory.env.items() if "CONDOR" in k.upper()}
    assert ours == {"CONDOR_CONFIG": str(directory.path / "condor_config")}
    directory.close()


def test_only_a_slot_name_of_the_drone_itself_reaches_a_command_line() -> None:
    good = GOOD[ONE]
    bad = ("slot1@kit-1", "slot1@kit-2@node", "slot@kit-1@node", "", "slot1@kit-1@" + "n" * 300)
    odd = (f"-{good}", f"{good};reboot", f"{good}\n", f"{good} -fast")
    assert slot_name(good, ONE) and not any(slot_name(name, ONE) for name in (*bad, *odd))


class Board(DrainOrders):
    """Order ads without a collector."""

    def __init__(self, readers: Mapping[DroneId, bool] = {}, fault: Fault | None = None) -> None:
        self.known, self.fault = readers, fault
        self.placed: list[tuple[str, DrainMode]] = []

    async def readers(self, drone_ids: Collection[DroneId]) -> Mapping[DroneId, bool]:
        return {
            drone_id: drains for drone_id, drains in self.known.items() if drone_id in drone_ids
        }

    async def place(
        self, drone_ids: Sequence[DroneId], mode: DrainMode
    ) -> Mapping[DroneId, Fault | None]:
        self.placed += [(drone_id, mode) for drone_id in drone_ids]
        return dict.fromkeys(drone_ids, self.fault)


def a_tool(tmp_path: Path, body: str, orders: DrainOrders | None = None) -> Drainer:
    """A drainer whose tool notes its arguments, a line each, and then does as told."""
    tool = tmp_path / "condor_drain"
    tool.write_text(f'#!/bin/sh\nfor each; do echo "[$each]"; done >>{tmp_path}/args\n{body}\n')
    tool.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CONDOR_CONFIG": "/private/config"}
    return Drainer("condor_drain", env, 1.0, orders or Board())


def args(tmp_path: Path) -> list[str]:
    return (tmp_path / "args").read_text().splitlines()


DRAINS = ["[-exit-on-completion]", "[-debug]", "[-reason]", "[why? $(id); `id`]"]


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        (DrainMode.PEACEFUL, ["[-graceful]", *DRAINS]),
        (DrainMode.GRACEFUL, ["[-quick]", *DRAINS]),
        (DrainMode.FAST, ["[-fast]", *DRAINS]),
        (DrainMode.RESUME, ["[-cancel]", "[-debug]"]),
    ],
)
async def test_the_modes(tmp_path: Path, mode: DrainMode, flags: list[str]) -> None:
    (receipt,) = await a_tool(tmp_path, "exit 0").drain(GOOD, mode, "why? $(id); `id`")
    assert receipt.answer is OrderOutcome.OK
    assert args(tmp_path) == [*flags, "[slot1@kit-1@node7.example.org]"]


async def test_nothing_is_run_for_none_for_the_gone_and_for_names_that_are_not_theirs(
    tmp_path: Path,
) -> None:
    drainer = a_tool(tmp_path, "exit 0")
    assert [r.answer for r in await drainer.drain(GOOD, DrainMode.NONE, "")] == [OrderOutcome.OK]
    assert [r.answer for r in await drainer.drain({ONE: None}, DrainMode.FAST, "")] == [
        OrderOutcome.OK
    ]
    (receipt,) = await drainer.drain({ONE: "slot1@x;reboot@h"}, DrainMode.FAST, "")
    assert (
        receipt.answer is OrderOutcome.REJECTED
        and receipt.fault
        and "is no slot of it" in receipt.fault.message
    )
    assert not (tmp_path / "args").exists()


@pytest.mark.parametrize(
    ("body", "answer", "kind"),
    [
        (
            'echo "ERROR: Can\'t find address for startd slot1@kit-1@n" >&2; exit 1',
            OrderOutcome.OK,
            None,
        ),
        (
            "echo 'error code 10001: Draining already in progress.' >&2; exit 1",
            OrderOutcome.OK,
            None,
        ),
        (
            "echo 'AUTHENTICATE:1004:Failed to authenticate' >&2; exit 1",
            OrderOutcome.REJECTED,
            FaultKind.DENIED,
        ),
        ("head -c 5000000 /dev/zero; echo oops; exit 3", OrderOutcome.REJECTED, FaultKind.DOWN),
        ("exec sleep 60", OrderOutcome.UNKNOWN, FaultKind.DOWN),
    ],
)
async def test_what_the_tool_says(
    tmp_path: Path, body: str, answer: OrderOutcome, kind: FaultKind | None
) -> None:
    (receipt,) = await a_tool(tmp_path, body).drain(GOOD, DrainMode.PEACEFUL, "out")
    assert receipt.answer is answer
    assert (receipt.fault.kind if receipt.fault else None) is kind
    assert receipt.fault is None or (
        len(receipt.fault.message) < 700 and receipt.fault.message.isprintable()
    )


async def test_one_that_drains_gently_is_taken_back_to_be_drained_harder(tmp_path: Path) -> None:
    first = f'[ "$1" = -fast ] && [ "$(grep -c fast {tmp_path}/args)" = 1 ]'
    busy = f"if {first}; then echo already draining; exit 1; fi"
    (receipt,) = await a_tool(tmp_path, busy).drain(GOOD, DrainMode.FAST, "out")
    assert receipt.answer is OrderOutcome.OK
    assert [line for line in args(tmp_path) if line in ("[-fast]", "[-cancel]")] == [
        "[-fast]",
        "[-cancel]",
        "[-fast]",
    ]


async def test_admission_and_what_needs_a_connection(tmp_path: Path) -> None:
    overlay = HTCondorOverlay(
        options(tmp_path, condor_prefix="/opt/condor", drone_config="A = 1"), "kit"
    )
    with pytest.raises(UnavailableError):
        await overlay.poll([])
    async with overlay:
        bootstrap = await overlay.bootstrap(ORDER)
        assert bootstrap.files == {"token": b"secret-of-the-drones\n", "extra.conf": b"A = 1"}
        place = {
            "DRONE_COLLECTOR": "pool.example.org:9618",
            "DRONE_TRUST_DOMAIN": "pool.example.org",
        }
        assert (
            bootstrap.env.items()
            >= {**place, "DRONE_TOKEN_FILE": "token", "CONDOR_PREFIX": "/opt/condor"}.items()
        )
        assert (
            bootstrap.script.startswith(b"#!/bin/sh") and b"secret" not in repr(bootstrap).encode()
        )
        (receipt,) = await overlay.drain([ONE], DrainMode.FAST, "out")
        assert (
            receipt.answer is OrderOutcome.REJECTED
            and receipt.fault
            and "no poll" in receipt.fault.message
        )
    (tmp_path / "drone").unlink()
    with pytest.raises(AuthError, match="token for drones"):
        await overlay.bootstrap(ORDER)
