"""Tokens of drones: what the controller signs is what the pool's own tool makes, and a token is good for one drone."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import classad2
import htcondor2  # noqa: F401 - makes ClassAds know HTCondor's own functions
import pytest
from pydantic import ValidationError

from adapters.htcondor.overlay import HTCondorOverlay
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.htcondor.overlay.slots import ours
from adapters.htcondor.tokens import TokenSigner
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AuthError
from provisioner.model import DroneId, StartOrder
from tests.htcondor_overlay.test_overlay_parts import KIND, options
from tests.htcondor_overlay.test_slots import ad

ONE = DroneId("kit-a1b2-1")


def config(tmp_path: Path, **more: Any) -> HTCondorConfig:
    """Options of a controller that signs the drones' tokens; both its files exist."""
    (tmp_path / "POOL").write_bytes(bytes(range(1, 65)))
    signs = {"drone_signing_key": str(tmp_path / "POOL"), "drone_token": None}
    return options(tmp_path, **signs | more)


def claims(token: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return found


@pytest.mark.parametrize(
    ("walltime_s", "wanted_s"),
    [(3600.0, 200_000 + 3600 + 10 + 3600), (0.0, 200_000 + 10 + 7 * 86400)],
    ids=["walltime", "none"],
)
async def test_a_token_outlasts_the_queue_of_the_drones_site(
    tmp_path: Path, walltime_s: float, wanted_s: float
) -> None:
    kind = replace(KIND, walltime_s=walltime_s)
    order = StartOrder(ONE, kind, 60.0, 10.0, comes_within_s=200_000.0)
    async with HTCondorOverlay(config(tmp_path), "kit") as overlay:
        began = time.time()
        signed = claims((await overlay.bootstrap(order)).files["token"].decode())
        ended = time.time()
    assert int(began + wanted_s) <= signed["exp"] <= ended + wanted_s


async def test_each_drone_gets_a_token_of_its_own_that_expires_after_its_walltime(
    tmp_path: Path,
) -> None:
    kind = replace(KIND, walltime_s=3600.0)
    async with HTCondorOverlay(config(tmp_path, drone_token_margin="1h"), "kit") as overlay:
        admissions = [
            await overlay.bootstrap(StartOrder(DroneId(f"kit-{n}"), kind, 60.0, 10.0))
            for n in (1, 2)
        ]
        (tmp_path / "POOL").unlink()
        with pytest.raises(AuthError, match=r"token for drones: signing key .*POOL cannot be read"):
            await overlay.bootstrap(StartOrder(ONE, kind, 60.0, 10.0))
    one, two = (claims(each.files["token"].decode()) for each in admissions)
    assert [each["sub"] for each in (one, two)] == [
        "drone-kit-1@pool.example.org",
        "drone-kit-2@pool.example.org",
    ]
    assert [each.env["DRONE_IDENTITY"] for each in admissions] == [one["sub"], two["sub"]]
    assert one["jti"] != two["jti"]
    assert one["iss"] == "pool.example.org"
    assert one["scope"] == "condor:/READ condor:/ADVERTISE_STARTD condor:/ADVERTISE_MASTER"
    assert 7200 <= one["exp"] - one["iat"] <= 7300


def test_an_empty_signing_key_signs_nothing(tmp_path: Path) -> None:
    (tmp_path / "POOL").touch()
    with pytest.raises(SecretUnreadableError, match="is empty"):
        TokenSigner(tmp_path / "POOL", "POOL", "pool.example.org").token("drone", 0.0, 60.0)


def test_each_drone_has_a_token_of_its_own_unless_told_otherwise(tmp_path: Path) -> None:
    """The shared token file is the exception, and `check` warns of it."""
    assert config(tmp_path).drone_token_mode == "signing-key"
    assert not any("share one token" in text for _, text in config(tmp_path).host_warnings())
    assert HTCondorConfig.model_fields["drone_token_mode"].default == "signing-key"
    (tmp_path / "POOL").chmod(0o640)
    assert any(
        "POOL can be read by others (mode 0640)" in text
        for _, text in config(tmp_path).host_warnings()
    )
    shared = options(tmp_path)
    assert shared.drone_token_mode == "static"
    assert ["share one token" in text for _, text in shared.host_warnings()].count(True) == 1
    with pytest.raises(ValidationError, match="`drone_signing_key` is wanted"):
        options(tmp_path, drone_token=None)


async def test_the_mode_says_which_secret_is_wanted_and_whether_drones_share_an_identity(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValidationError, match="`drone_signing_key` is wanted"):
        config(tmp_path, drone_signing_key=None)
    with pytest.raises(ValidationError, match="`drone_token` is wanted"):
        config(tmp_path, drone_token_mode="static")
    assert config(tmp_path).drone_identities == "drone-{drone}@pool.example.org"
    assert not config(
        tmp_path, drone_token_mode="static", drone_token={"env": "T"}
    ).drone_identities
    async with HTCondorOverlay(shared := config(tmp_path, drone_user="drone"), "kit") as overlay:
        bootstrap = await overlay.bootstrap(StartOrder(ONE, KIND, 60.0, 10.0))
    assert claims(bootstrap.files["token"].decode())["sub"] == "drone@pool.example.org"
    assert "DRONE_IDENTITY" not in bootstrap.env and not shared.drone_identities


@pytest.mark.parametrize(
    ("sender", "more", "asked_for"),
    [
        (f"drone-{ONE}", {}, True),
        ("drone-kit-a1b2-2", {}, False),
        ("drone", {}, True),
        (f"drone-{ONE}", {"GPUs_DeviceName": f'"{"x" * 2000}"'}, False),
        (f"drone-{ONE}", {"SlotType": '"Dynamic"'}, False),
    ],
)
def test_ads_of_stolen_tokens_and_huge_ones_stay_in_the_collector(
    sender: str, more: dict[str, str], asked_for: bool
) -> None:
    """Forged ads of a megabyte each, of which each look read all, took the pool out of the controller's view."""
    sent = ad(
        **{"DroneId": f'"{ONE}"', "AuthenticatedIdentity": f'"{sender}@pool.example.org"', **more}
    )
    constraint = classad2.ExprTree(ours("drone-{drone}@pool.example.org"))
    assert constraint.eval(sent) is asked_for
    if sender == "drone":
        assert classad2.ExprTree(ours()).eval(sent) is True
