"""Tokens are read before the pool refuses them: `check` reports expiry, issuer, scopes and file mode."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest

from adapters.htcondor.overlay import explained, no_condor, probe
from adapters.htcondor.tokens import InvalidTokenError, read_token
from provisioner.config import check, load
from provisioner.interfaces import AuthError
from tests.htcondor_overlay.test_overlay_parts import options


def token(**claims: object) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    known = {"iss": "pool.test", "sub": "drone@pool.test"} | claims
    return ".".join((part({"alg": "HS256", "kid": "POOL"}), part(known), part("signature")))


CONTROLLER = {"sub": "provisioner@pool.test", "scope": "condor:/READ condor:/ADMINISTRATOR"}
DRONE = {"scope": "condor:/READ condor:/ADVERTISE_STARTD condor:/ADVERTISE_MASTER"}
FILE = """\
controller: kit
store: {path: provisioner.db}
overlay:
  adapter: htcondor
  options:
    collector: pool.test:9618
    trust_domain: pool.test
    token: {file: controller.token}
    drone_token: {file: drone.token}
sites: [local.yaml]
policy: {idle_timeout: 10min, max_drones: 4}
"""
SITE = """\
site: local
adapter: local
limits: {max_drones: 1}
types:
  cpu: {gpus: 0, cpus: 1, memory: 1 GiB, disk: 1 GiB}
options: {root: drones, gpus: [], same_account: true}
"""


def written(place: Path, controller: str, drone: str) -> Path:
    (place / "provisioner.yaml").write_text(FILE)
    (place / "local.yaml").write_text(SITE)
    for name, text in (("controller", controller), ("drone", drone)):
        (place / f"{name}.token").write_text(text + "\n")
        (place / f"{name}.token").chmod(0o600)
    return place / "provisioner.yaml"


def test_a_token_that_cannot_work_fails_the_check_but_not_the_start(tmp_path: Path) -> None:
    for controller, drone, words in (
        (
            token(**CONTROLLER, exp=1_700_000_000),
            token(**DRONE),
            "provisioner@pool.test expired at 2023-11-14T22:13",
        ),
        (token(**CONTROLLER), "a.b!.c", "`drone_token`: no IDTOKEN: its content is not JSON"),
        (
            token(**CONTROLLER),
            token(scope="condor:/READ"),
            "not good for ADVERTISE_MASTER, ADVERTISE_STARTD",
        ),
        (token(**CONTROLLER), token(**DRONE, nbf=9_000_000_000), "not valid before 2255-03-14"),
    ):
        path = written(tmp_path, controller, drone)
        (problem,) = check(path).problems
        assert words in problem.message and problem.line in (8, 9)
        assert load(path).controller == "kit", "it can be renewed while the controller runs"


@pytest.mark.parametrize(
    ("controller", "drone", "words"),
    [
        (
            token(**CONTROLLER | {"iss": "other.test"}),
            token(**DRONE),
            "issuer is other.test, not `trust_domain` pool",
        ),
        (
            token(sub="p@pool.test", scope="condor:/READ"),
            token(**DRONE),
            "not good for DAEMON or ADMINISTRATOR",
        ),
        (token(**CONTROLLER), token(), "drone@pool.test has no limits, and jobs may read it"),
        (
            token(**CONTROLLER),
            token(scope=DRONE["scope"] + " condor:/WRITE"),
            "is also good for WRITE",
        ),
        ("", token(**DRONE), "`token`: the credential of provisioner@pool.test expires at"),
    ],
    # the same in each process of a run
    ids=["issuer", "rights", "no-limits", "too-many-rights", "expires-soon"],
)
def test_what_is_odd_in_a_token_is_a_warning(
    tmp_path: Path, controller: str, drone: str, words: str
) -> None:
    path = written(tmp_path, controller or token(**CONTROLLER, exp=int(time.time()) + 3600), drone)
    assert check(path).problems == []
    warning, shared = sorted(
        check(path).warnings, key=lambda each: "share one token" in each.message
    )
    assert words in warning.message
    assert "Set `drone_signing_key`" in shared.message


def test_a_token_file_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    path = written(tmp_path, token(**CONTROLLER), token(**DRONE))
    assert check(path).problems == [] and len(check(path).warnings) == 1
    (tmp_path / "drone.token").chmod(0o644)
    assert sum(w.message.count("mode 0644") for w in check(path).warnings) == 1


def test_what_is_no_token_is_told_without_its_text() -> None:
    for text in ("a.b", "a.e30.c", token(iss=1), token(exp=float("nan")), "." * 30000):
        with pytest.raises(InvalidTokenError) as told:
            read_token(text)
        assert len(str(told.value)) < 80


def test_a_pool_that_does_not_authenticate_us_is_explained_by_the_token(tmp_path: Path) -> None:
    """HTCondor says the same of garbage, of another pool's token and of an expired one."""
    config = options(tmp_path, trust_domain="pool.test")
    (tmp_path / "token").chmod(0o600)
    denied = AuthError("collector pool.test:9618: Failed to authenticate with any method")
    for text, words in (
        (token(**CONTROLLER, exp=1_700_000_000), "expired at 2023-11-14T22:13:20Z"),
        ("garbage", "no IDTOKEN"),
        (
            token(**CONTROLLER | {"iss": "other.test"}),
            "issuer is other.test, not `trust_domain` pool.test",
        ),
        (token(**CONTROLLER), "the token looks right: is its key the pool's own"),
    ):
        (tmp_path / "token").write_text(text)
        assert words in str(explained(denied, config))
    assert str(explained(AuthError("schedd x denied us READ"), config)) == "schedd x denied us READ"


async def test_a_tool_that_drains_and_is_missing_is_a_gap(tmp_path: Path) -> None:
    """`check --live` said "overlay yes", and drains were refused later."""
    drain_tool = str(tmp_path / "condor_drain")
    config = options(
        tmp_path, collector="127.0.0.1:1", trust_domain="pool.test", drain_tool=drain_tool
    )
    file = tmp_path / "token"
    file.write_text(token(**CONTROLLER))
    (gap,) = await probe(config, dict(os.environ))
    assert gap.dimension == "drain" and "set `drain_tool`" in gap.message
    for name in ("condor_drain", "condor_ping"):
        (tmp_path / name).write_text("#!/bin/sh\necho DENIED to $PROBED; exit 1\n")
        (tmp_path / name).chmod(0o755)
    (gap,) = await probe(config, dict(os.environ) | {"PROBED": "anna"})
    assert (
        gap.dimension == "drain"
        and "ADMINISTRATOR" in gap.message
        and "DENIED to anna" in gap.message
    )
    (tmp_path / "condor_ping").write_text("#!/bin/sh\nexit 0\n")
    assert await probe(config, dict(os.environ)) == []
    file.write_text(token(**CONTROLLER | {"scope": "condor:/READ"}))
    (gap,) = await probe(config, dict(os.environ))
    assert (
        "does not allow ADMINISTRATOR; the controller's token does not allow DAEMON" in gap.message
    )
    file.write_text(token(**CONTROLLER | {"scope": "condor:/READ condor:/DAEMON"}))
    assert await probe(config, dict(os.environ)) == [], "order ads are enough"


def test_htcondor_that_is_missing_on_this_host_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four drones failed with "condor_master is neither on PATH nor in /usr/sbin" before anybody knew."""
    monkeypatch.setattr("adapters.htcondor.overlay._MORE_PATH", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    (gap,) = no_condor(options(tmp_path))
    assert gap.dimension == "htcondor" and "set `condor_prefix`" in gap.message
    (gap,) = no_condor(options(tmp_path, condor_prefix=str(tmp_path)))
    assert f"no condor_master below {tmp_path}: drones" in gap.message
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/condor_master").touch(0o755)
    assert no_condor(options(tmp_path, condor_prefix=str(tmp_path))) == []
    (tmp_path / os.uname().machine).symlink_to(tmp_path)
    assert no_condor(options(tmp_path, condor_prefix=f"{tmp_path}/{{arch}}")) == []
