"""What becomes of TARDIS's OpenStack sites: the login, the request for a server, and what `provisioner check` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from adapters.openstack.settings import OpenStackSiteConfig
from provisioner.config import check
from provisioner.loader import site_adapters
from provisioner.migrate import ImportOutcome, ImportResult
from tests.migrate.examples import OPENSTACK, about, converted, finding, written
from tests.migrate.test_check import complained, marked

GPU = "Woohoo.MachineTypeConfiguration.gpu_1"
XLARGE = "Woohoo.MachineTypeConfiguration.m1.xlarge"
VOLUME = "Vault.MachineTypeConfiguration.volume"
AT = "site_configs/vault.yaml: options"
NETWORK = "fe0317c6-0bed-488b-9108-13726656a0ea"


def options(made: ImportResult, name: str) -> Any:
    return yaml.safe_load(made.files[f"site_configs/{name}.yaml"])["options"]


def with_type(text: str) -> ImportResult:
    """The site Vault, its only type configured by ``text``."""
    before, _, after = OPENSTACK.partition("    volume:\n      flavorRef: m1.small\n")
    rest = after.partition("  MachineMetaData:\n")[2]
    return converted(f"{before}    volume: {text}\n  MachineMetaData:\n{rest}")


def problems(made: ImportResult, directory: Path) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Lines that `provisioner check` complains of, and lines with a mark."""
    path = written(made, directory)
    return complained(check(path)), marked(path)


# ----------------------------------------------------------------------------------------------------------- the login


def test_a_password_site_names_a_cloud_and_says_what_its_entry_is() -> None:
    made = converted(OPENSTACK)
    assert options(made, "woohoo")["cloud"] == "woohoo"
    told = finding(made, "Woohoo.password")
    assert (told.verdict, told.line, told.ours) == (ImportOutcome.NEEDED, 8, "site_configs/woohoo.yaml: options.cloud")
    assert "clouds.yaml" in told.text and "`woohoo`" in told.text
    for number, key in ((6, "auth_url"), (7, "username"), (9, "project_name"), (10, "user_domain_name")):
        assert about(made, f"Woohoo.{key}") == [(ImportOutcome.DROPPED, number, "")]


def test_an_application_credential_stands_in_the_site_file_but_for_its_secret() -> None:
    made = converted(OPENSTACK)
    assert options(made, "vault")["auth"] == {
        "url": "https://vault.example.org:5000",
        "application_credential_id": "0123456789abcdef0123456789abcdef",
        "application_credential_secret": "<{file: vault.secret}>",
    }
    secret = "application_credential_secret"
    assert about(made, f"Vault.{secret}") == [(ImportOutcome.NEEDED, 41, f"{AT}.auth.{secret}")]


def test_of_both_the_application_credential_is_taken() -> None:
    both = "  username: ops\n  password: gee-heim\n  application_credential_id: 0123"
    made = converted(OPENSTACK.replace("  application_credential_id: 0123", both))
    assert "cloud" not in options(made, "vault")
    assert about(made, "Vault.username") == [(ImportOutcome.DROPPED, 40, "")]
    assert about(made, "Vault.password") == [(ImportOutcome.DROPPED, 41, "")]
    assert "gee-heim" not in made.files["site_configs/vault.yaml"]


@pytest.mark.parametrize("url", ["ftp://a", "https://a:gee-heim@c@d/v3", "https://a/v3?token=gee-heim", "[1]", "~"])
def test_an_address_that_is_none_needs_you(url: str) -> None:
    made = converted(OPENSTACK.replace("https://vault.example.org:5000", url))
    assert about(made, "Vault.auth_url") == [(ImportOutcome.NEEDED, 39, f"{AT}.auth.url")]
    assert options(made, "vault")["auth"]["url"] == "<https://keystone.example.org:5000/v3>"
    assert "gee-heim" not in "".join(made.files.values())


# ---------------------------------------------------------------------------------------------------------- the server


def test_each_type_has_its_request_to_nova() -> None:
    made = converted(OPENSTACK)
    found = options(made, "woohoo")
    assert found == {
        "cloud": "woohoo",
        "types": {
            "m1-xlarge": {
                "flavor": "5",
                "image": "bc613271-6a54-48ca-9222-47e009dc0c29",
                "networks": [NETWORK],
                "key_pair": "MG",
                "security_groups": ["drones", "squid"],
            },
            "gpu-1": {
                "flavor": "gpu.v100s.1",
                "image": "gpu-drone",
                "networks": [NETWORK],
                "key_pair": "MG",
                "security_groups": ["drones"],
                "availability_zone": "gpus",
                "config_drive": True,
            },
        },
    }
    gpu = OpenStackSiteConfig.model_validate(found).server("gpu-1")
    assert (gpu.flavor, gpu.image, gpu.networks, gpu.key_pair) == ("gpu.v100s.1", "gpu-drone", [NETWORK], "MG")
    at = "site_configs/woohoo.yaml: options.types.gpu-1"
    assert about(made, f"{GPU}.key_name") == [(ImportOutcome.CONVERTED, 29, f"{at}.key_pair")]
    assert about(made, f"{GPU}.flavorRef") == [(ImportOutcome.CONVERTED, 25, f"{at}.flavor")]


def test_what_a_drones_server_does_not_have_is_dropped_and_that_is_said() -> None:
    made = converted(OPENSTACK)
    dropped = {
        f.key.removeprefix("Woohoo.MachineTypeConfiguration.")
        for f in made.findings
        if f.verdict is ImportOutcome.DROPPED and "Woohoo.MachineTypeConfiguration." in f.key
    }
    assert dropped == {
        "m1.xlarge.user_data",
        "m1.xlarge.adminPass",
        "m1.xlarge.metadata",
        "gpu_1.min_count",
        "gpu_1.hypervisor_hostname",
        "old",
    }
    assert "`setup`" in finding(made, f"{XLARGE}.user_data").text


@pytest.mark.parametrize(
    ("networks", "written_as"),
    [("none", []), ("auto", None), ("[{uuid: a}, {uuid: b}]", ["a", "b"])],
)
def test_networks(networks: str, written_as: list[str] | None) -> None:
    made = with_type(f"{{flavorRef: a, imageRef: i, networks: {networks}}}")
    assert options(made, "vault")["types"]["volume"].get("networks") == written_as
    assert finding(made, f"{VOLUME}.networks").verdict is ImportOutcome.CONVERTED


# --------------------------------------------------------------------------------------------------------------- check


def test_the_gpus_of_a_flavour_have_to_be_told() -> None:
    """A flavour with GPUs became a CPU drone, and the verdict was `changed`."""
    made = converted(OPENSTACK)
    told = [f for f in made.findings if f.ours.endswith(".gpus") and f.ours.startswith("site_configs/woohoo.yaml")]
    assert told and {f.verdict for f in told} == {ImportOutcome.NEEDED}
    types = yaml.safe_load(made.files["site_configs/woohoo.yaml"])["types"].values()
    assert {kind["gpus"] for kind in types} == {"<GPUs of one drone, 0 for a CPU drone>"}


def test_filled_in_it_passes(tmp_path: Path) -> None:
    path = written(converted(OPENSTACK, installed=site_adapters()), tmp_path)
    for file, mark, value in (
        (path, "<name of this controller: it begins each drone's id>", "kit"),
        (path, "<TRUST_DOMAIN of the pool>", "pool.example.org"),
        *((path, f"<{{file: {name}.token}}>", f"{{file: {name}.token}}") for name in ("controller", "drone")),
        (tmp_path / "site_configs" / "vault.yaml", "<{file: vault.secret}>", "{file: vault.secret}"),
        (tmp_path / "site_configs" / "vault.yaml", "<image, by name or id>", "gpu-drone"),
        *(
            (tmp_path / "site_configs" / f"{name}.yaml", "<GPUs of one drone, 0 for a CPU drone>", "0")
            for name in ("woohoo", "vault")
        ),
    ):
        text = file.read_text()
        assert f'"{mark}"' in text
        file.write_text(text.replace(f'"{mark}"', value))
    assert check(path) == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("flavorRef: ~", "flavor"),
        ("flavorRef: 'a,b'", "flavor"),
        ("imageRef: {a: 1}", "image"),
        ("networks: [{port: p}]", "networks"),
        ("networks: []", "networks"),
        (f"networks: [{', '.join(['{uuid: n}'] * 9)}]", "networks"),
        ("networks: [{uuid: n, fixed_ip: 192.0.2.1}]", "networks"),
        ("security_groups: drones", "security_groups"),
        (f"security_groups: [{', '.join(['{name: n}'] * 17)}]", "security_groups"),
        ("key_name: [k]", "key_pair"),
        ("key_name: a/b", "key_pair"),
        (f"availability_zone: {'z' * 256}", "availability_zone"),
        ("config_drive: maybe", "config_drive"),
        ("block_device_mapping_v2: [{boot_index: 0}]", "boot_volume"),
    ],
)
def test_what_cannot_be_taken_over_is_marked_and_check_names_the_mark(theirs: str, ours: str, tmp_path: Path) -> None:
    before = "flavorRef: a, " if not theirs.startswith("flavorRef") else ""
    image = "imageRef: i, " if not theirs.startswith("imageRef") else ""
    made = with_type(f"{{{before}{image}{theirs}}}")
    needed = [f.ours for f in made.findings if f.verdict is ImportOutcome.NEEDED and f.line == 44]
    assert needed == [f"{AT}.types.volume.{ours}"]
    complaints, marks = problems(made, tmp_path)
    assert complaints == marks
    own = 0 if ours == "boot_volume" else 1
    assert len([name for name, _ in marks if name == "vault.yaml"]) == 2 + own  # the GPUs, the secret's, and this one


@pytest.mark.parametrize("text", ["{}", "~", "[1]", "{Walltime: '60'}"])
def test_a_type_that_says_nothing_needs_flavour_and_image(text: str, tmp_path: Path) -> None:
    made = with_type(text)
    found = options(made, "vault")
    assert found["types"] == {"volume": {"flavor": "<flavour, by name or id>", "image": "<image, by name or id>"}}
    complaints, marks = problems(made, tmp_path)
    assert complaints == marks


def test_a_site_without_types_is_marked(tmp_path: Path) -> None:
    made = converted(OPENSTACK.replace("  MachineTypes: [volume]\n", ""))
    complaints, marks = problems(made, tmp_path)
    assert complaints == marks
