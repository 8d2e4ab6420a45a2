"""What becomes of TARDIS's OpenStack sites: the login, the request for a server, and what `provisioner check` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.config import check
from provisioner.migrate import ImportOutcome, ImportResult
from tests.migrate.examples import OPENSTACK, about, converted, finding, written
from tests.migrate.test_check import complained, marked

VOLUME = "Vault.MachineTypeConfiguration.volume"
AT = "site_configs/vault.yaml: options"


def options(made: ImportResult, name: str) -> Any:
    return yaml.safe_load(made.files[f"site_configs/{name}.yaml"])["options"]


def with_type(text: str) -> ImportResult:
    """The site Vault, its only type configured by ``text``."""
    before, _, after = OPENSTACK.partition("    volume:\n      flavorRef: m1.small\n")
    rest = after.partition("  MachineMetaData:\n")[2]
    return converted(f"{before}    volume: {text}\n  MachineMetaData:\n{rest}")


def test_of_both_the_application_credential_is_taken() -> None:
    both = "  username: ops\n  password: gee-heim\n  application_credential_id: 0123"
    made = converted(OPENSTACK.replace("  application_credential_id: 0123", both))
    assert "cloud" not in options(made, "vault")
    assert about(made, "Vault.username") == [(ImportOutcome.DROPPED, 40, "")]
    assert about(made, "Vault.password") == [(ImportOutcome.DROPPED, 41, "")]
    assert "gee-heim" not in made.files["site_configs/vault.yaml"]


@pytest.mark.parametrize("url", ["ftp://a", "https://a/v3?token=gee-heim", "~"])
def test_an_address_that_is_none_needs_you(url: str) -> None:
    made = converted(OPENSTACK.replace("https://vault.example.org:5000", url))
    assert about(made, "Vault.auth_url") == [(ImportOutcome.NEEDED, 39, f"{AT}.auth.url")]
    assert options(made, "vault")["auth"]["url"] == "<https://keystone.example.org:5000/v3>"
    assert "gee-heim" not in "".join(made.files.values())


@pytest.mark.parametrize(
    ("networks", "written_as"),
    [("none", []), ("auto", None), ("[{uuid: a}, {uuid: b}]", ["a", "b"])],
)
def test_networks(networks: str, written_as: list[str] | None) -> None:
    made = with_type(f"{{flavorRef: a, imageRef: i, networks: {networks}}}")
    assert options(made, "vault")["types"]["volume"].get("networks") == written_as
    assert finding(made, f"{VOLUME}.networks").verdict is ImportOutcome.CONVERTED


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("flavorRef: ~", "flavor"),
        ("imageRef: {a: 1}", "image"),
        ("networks: [{uuid: n, fixed_ip: 192.0.2.1}]", "networks"),
        ("security_groups: drones", "security_groups"),
        ("key_name: a/b", "key_pair"),
        ("config_drive: maybe", "config_drive"),
        ("block_device_mapping_v2: [{boot_index: 0}]", "boot_volume"),
    ],
)
def test_what_cannot_be_taken_over_is_marked_and_check_names_the_mark(
    theirs: str, ours: str, tmp_path: Path
) -> None:
    before = "flavorRef: a, " if not theirs.startswith("flavorRef") else ""
    image = "imageRef: i, " if not theirs.startswith("imageRef") else ""
    made = with_type(f"{{{before}{image}{theirs}}}")
    needed = [f.ours for f in made.findings if f.verdict is ImportOutcome.NEEDED and f.line == 44]
    assert needed == [f"{AT}.types.volume.{ours}"]
    path = written(made, tmp_path)
    marks = marked(path)
    assert complained(check(path).problems) == marks
    own = 0 if ours == "boot_volume" else 1
    # the GPUs, the secret's, and this one
    assert len([name for name, _ in marks if name == "vault.yaml"]) == 2 + own
