"""The files of a first configuration: accepted by `check`, made of what the host knows, and never written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from provisioner.answers.errors import Exit
from provisioner.cli.init import SiteKind
from provisioner.config import check, load
from tests.cli.conftest import Cli, process
from tests.htcondor_overlay.test_idtoken import CONTROLLER, token

GPU = ("gpu_model=A100-SXM4-40GB",)
REST = {
    SiteKind.LOCAL: (),
    SiteKind.SLURM: (*GPU, "partition=gpu", "same_account=true"),
    SiteKind.KUBERNETES: (*GPU, "kubeconfig=config", "image=registry.example.org/drone:25"),
    SiteKind.OPENSTACK: (
        *(*GPU, "clouds_file=clouds.yaml", "cloud=gridka"),
        *("image=gpu-drone", "network=drones", "flavor=gpu.1"),
    ),
    SiteKind.HTCONDOR: (
        *(*GPU, "site_pool=cm.topas.test:9618", "schedd=submit.topas.test"),
        "site_token=site.token",
    ),
}
"""Further options for each kind of site."""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: drones
clusters: [{name: k, cluster: {server: "https://k8s.test:6443"}}]
users: [{name: robot, user: {token: x}}]
contexts: [{name: drones, context: {cluster: k, user: robot, namespace: pilots}}]
"""
CLOUDS = """\
clouds:
  gridka:
    auth_type: v3applicationcredential
    auth: {auth_url: "https://keystone.test/v3", application_credential_id: a, application_credential_secret: b}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home with the secrets of a controller; of this host only the usual tools are on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tools}:/bin")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, text in (
        ("controller.token", token(**CONTROLLER)),
        ("site.token", token(**CONTROLLER)),
        ("drones.key", "k" * 64),
        ("config", KUBECONFIG),
        ("clouds.yaml", CLOUDS),
    ):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    return tmp_path


def tool(home: Path, name: str, text: str, bare: str = "") -> None:
    """Put a program on PATH that prints what the real one was seen to print, ``bare`` without arguments."""
    path = home / "tools" / name
    path.write_text(f"#!/bin/sh\n[ $# != 0 ] || exec echo '{bare}'\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def init(cli: Cli, *words: str, kind: str = "local"):
    settings = [part for each in words for part in ("--set", each)]
    secrets = ("--token", "controller.token", "--key", "drones.key")
    return cli("init", "--kind", kind, "--pool", "cm.test:9618", *secrets, *settings)


@pytest.mark.parametrize("kind", SiteKind)
def test_the_files_of_each_kind_of_site_are_accepted(cli: Cli, home: Path, kind: SiteKind) -> None:
    ran = init(cli, *REST[kind], kind=kind)
    assert ran.code == Exit.OK, ran.err
    assert check(home / "provisioner.yaml").problems == []
    settings = load(home / "provisioner.yaml")
    (site,) = settings.sites
    assert (site.name, site.adapter, len(site.types)) == (kind, kind, 1)
    assert settings.overlay.options.trust_domain == "pool.test", "the issuer of the token"
    assert settings.overlay.options.drone_signing_key_id == "drones"
    if kind is not SiteKind.LOCAL:
        assert (site.types[0].vram_mib, site.types[0].capability) == (40 * 1024, 80)
    for file in ("provisioner.yaml", f"{kind}.yaml"):
        text = (home / file).read_text()
        assert text.startswith("# ") and "$" not in text


def test_no_file_is_written_over(cli: Cli, home: Path) -> None:
    (home / "local.yaml").write_text("mine")
    ran = init(cli)
    assert ran.code == Exit.FAILED and "local.yaml exists already" in ran.err
    assert "--force" not in ran.err
    assert (home / "local.yaml").read_text() == "mine"
    assert not (home / "provisioner.yaml").exists()


def test_print_writes_nothing(cli: Cli, home: Path) -> None:
    before = set(home.iterdir())
    ran = cli("init", "--print", "--pool", "cm.test", "--token", "controller.token", "--key", "x")
    assert ran.code == Exit.OK and set(home.iterdir()) == before
    first, second = ran.out.split("\n# local.yaml\n")
    assert first.startswith("# provisioner.yaml\n") and yaml.safe_load(second)["site"] == "local"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "missing value: Collector of the pool as drones reach it, HOST:PORT. Write --pool"),
        (("--pool", "x"), "Write --token"),
        (
            ("--pool", "x", "--token", "nosuch", "--key", "k"),
            "TRUST_DOMAIN). Write --set trust_domain=VALUE",
        ),
        (("--set", "max_drone=4"), "no value `max_drone`; did you mean `max_drones`?"),
        (("--kind", "slurmm"), "'slurmm' is not one of 'local', 'slurm'"),
    ],
)
def test_a_value_that_is_missing_or_wrong_names_its_option(
    cli: Cli, home: Path, words: tuple[str, ...], said: str
) -> None:
    ran = cli("init", *words)
    assert ran.code == Exit.USAGE and said in " ".join(ran.err.split())
    assert not (home / "provisioner.yaml").exists()


def test_on_a_terminal_it_asks(home: Path) -> None:
    """Kind, name, pool, token, key; the defaults of record and limit; the fields of the site."""
    answers = ("htcondor", "kit", "cm.test:9618", "controller.token", "drones.key", "", "")
    answers += ("cm.topas.test:9618", "submit.topas.test", "site.token", "A100-SXM4-40GB", "", "")
    terminal, stdin = os.openpty()
    os.write(terminal, "".join(f"{each}\n" for each in answers).encode())
    ran = process("init", "--to", home / "new", stdin=stdin)
    os.close(terminal)
    assert ran.returncode == Exit.OK, ran.stderr
    settings = load(home / "new" / "provisioner.yaml")
    (site,) = settings.sites
    assert (settings.controller, site.adapter, site.types[0].cpus) == ("kit", "htcondor", 8)
    assert settings.overlay.options.token.file == home / "controller.token"
    assert "Memory of a drone [20 GiB]" in ran.stderr


def test_a_mistake_is_found_at_once(cli: Cli, home: Path) -> None:
    ran = init(cli, "max_drones=many")
    assert ran.code == Exit.UNMET and "provisioner.yaml:" in ran.err and "max_drones" in ran.err


def types_of(home: Path, site: str) -> dict[str, dict[str, object]]:
    return yaml.safe_load((home / f"{site}.yaml").read_text())["types"]


def test_the_gpus_of_this_host_are_those_of_nvidia_smi(cli: Cli, home: Path) -> None:
    row = "NVIDIA A100-SXM4-40GB, 40536, 8.0"
    head = "| NVIDIA-SMI 550.90  Driver Version: 550.90  CUDA Version: 12.4     |"
    tool(home, "nvidia-smi", f"{row}\n{row}", head)
    assert init(cli, f"root={home}/drones").code == Exit.OK
    types = types_of(home, "local")
    one = types["a100-sxm4-40gb"]
    assert len(types) == 1
    assert (one["gpus"], one["vram"], one["capability"]) == (1, "40536 MiB", 8.0)
    assert one["driver"] == "12.4"
    assert check(home / "provisioner.yaml").problems == []


def test_the_pool_is_that_of_the_configuration_of_htcondor(cli: Cli, home: Path) -> None:
    tool(home, "condor_config_val", "cm.example.org, cm2.example.org")
    ran = cli("init", "--token", "controller.token", "--key", "drones.key")
    assert ran.code == Exit.OK, ran.err
    assert load(home / "provisioner.yaml").overlay.options.collector == "cm.example.org:9618"


def test_the_gpus_of_a_slurm_cluster_are_those_of_sinfo(cli: Cli, home: Path) -> None:
    rows = (
        "cpu|(null)|152|250000",
        "accelerated|gpu:a100:4(S:0-1)|152|512000",
        "accelerated-h100|gpu:h100:4|152|768000",
        "backfill|gpu:a100:4|152|512000",
    )
    tool(home, "sinfo", "\n".join(rows))
    tool(home, "scontrol", "KillOnBadExit           = 0\nKillWait                = 45 sec")
    ran = init(cli, "same_account=true", kind="slurm")
    assert ran.code == Exit.OK, ran.err
    assert load(home / "provisioner.yaml").sites[0].policy.grace_s == 45.0
    types = types_of(home, "slurm")
    assert list(types) == ["a100", "h100"]
    assert (types["a100"]["cpus"], types["a100"]["memory"]) == (38, "115200 MiB")
    options = yaml.safe_load((home / "slurm.yaml").read_text())["options"]["types"]
    assert options["h100"] == {"gres": "gpu:h100", "partition": "accelerated-h100"}
    assert options["a100"]["partition"] == "accelerated"


def test_the_namespace_and_the_products_of_a_cluster_are_read(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(home / "config"))
    tool(home, "kubectl", "NVIDIA-A100-SXM4-40GB\nNVIDIA-A100-SXM4-40GB\n\nTesla-T4")
    ran = init(cli, "image=registry.example.org/drone:25", kind="kubernetes")
    assert ran.code == Exit.OK, ran.err
    tree = yaml.safe_load((home / "kubernetes.yaml").read_text())
    assert tree["options"]["namespace"] == "pilots"
    assert list(tree["types"]) == ["a100-sxm4-40gb", "t4"]
    assert tree["options"]["types"]["t4"]["products"] == ["Tesla-T4"]


def test_an_entry_of_a_clouds_yaml_is_found(cli: Cli, home: Path) -> None:
    words = [each for each in REST[SiteKind.OPENSTACK] if "cloud" not in each]
    assert init(cli, *words, kind="openstack").code == Exit.OK
    options = yaml.safe_load((home / "openstack.yaml").read_text())["options"]
    assert (options["cloud"], options["clouds_file"]) == ("gridka", str(home / "clouds.yaml"))
