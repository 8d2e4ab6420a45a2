"""``provisioner render balancer``: the balancer of inference services, and its address for jobs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from provisioner.answers.errors import Exit
from tests.cli.conftest import Cli

DEMO = Path(__file__).parents[2] / "site_configs" / "demo"
SERVICES = """
services:
  - {name: cms, at_most: 2, tokens: {cms: {file: token}}, key: {file: key}, concurrency: 3}
  - {name: open, at_most: 1, http_port: 9000, grpc_port: 9001}
balancer: {socket: admin.sock, host: balancer.example.org}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "local.yaml").write_text((DEMO / "local.yaml").read_text())
    for name, secret in (("token", "the token\n"), ("key", "the key\n")):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    written = tmp_path / "provisioner.yaml"
    written.write_text((DEMO / "provisioner.yaml").read_text() + SERVICES)
    return written


def test_the_configuration_has_both_protocols_of_each_service(cli: Cli, config: Path) -> None:
    ran = cli("render", "balancer", "-c", config)

    assert ran.code == Exit.OK, ran.err
    ports = [line.split()[1] for line in ran.out.splitlines() if line.startswith("    bind ")]
    assert ports == [":8000", ":8001", ":9000", ":9001"]
    assert f"stats socket {config.parent}/admin.sock mode 660 level admin" in ran.out
    assert ran.out.count("server-template s 1-4 127.0.0.1:1 disabled maxconn 3") == 2
    assert ran.out.count("/etc/haproxy/cms.tokens") == ran.out.count("/etc/haproxy/services.keys")
    assert "open.tokens" not in ran.out
    assert "the token" not in ran.out and "the key" not in ran.out


def test_secrets_are_written_for_their_owner_alone(cli: Cli, config: Path, tmp_path: Path) -> None:
    to = tmp_path / "haproxy"

    ran = cli("render", "balancer", "-c", config, "--to", to)

    assert ran.code == Exit.OK, ran.err
    digest = hashlib.sha256(b"the token").hexdigest()
    assert {file.name: file.read_text() for file in to.iterdir() if file.name != "haproxy.cfg"} == {
        "cms.tokens": f"{digest} cms\n",
        "services.keys": "cms the key\n",
    }
    assert {file.stat().st_mode & 0o777 for file in to.iterdir()} == {0o600}
    assert f"map({to}/cms.tokens)" in (to / "haproxy.cfg").read_text()


def test_nodes_of_a_pool_get_the_address_of_a_service(cli: Cli, config: Path) -> None:
    assert cli("render", "balancer", "-c", config, "--address-of", "open").out == (
        'STARTER_JOB_ENVIRONMENT = "SONIC_LOCAL_BALANCER_HOST=balancer.example.org '
        'SONIC_LOCAL_BALANCER_PORT=9001"\n'
    )
    ran = cli("render", "balancer", "-c", config, "--address-of", "openn")
    assert ran.code == Exit.FAILED
    assert "no service `openn`; did you mean `open`?" in ran.err


def test_without_services_or_a_secret_the_remedy_is_named(cli: Cli, config: Path) -> None:
    (config.parent / "token").unlink()
    ran = cli("render", "balancer", "-c", config, "--to", config.parent)
    assert ran.code == Exit.FAILED and "token" in ran.err

    config.write_text((DEMO / "provisioner.yaml").read_text())
    ran = cli("render", "balancer", "-c", config)
    assert ran.code == Exit.UNMET
    assert "balancer: {socket: /run/haproxy/admin.sock, host: balancer.example.org}" in ran.err


def test_files_for_accounting_need_a_pool_of_htcondor(cli: Cli, config: Path) -> None:
    ran = cli("render", "accounting", "-c", config)

    assert "overlay embedded has no files for accounting systems" in ran.err
