"""Where a cloud is and who we are there, as operators' clouds.yamls say it; and what they get wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.openstack import clouds
from adapters.openstack.clouds import Access, NoAccessError
from adapters.openstack.settings import CloudAccess
from provisioner.model import FaultKind

APPLICATION = """\
clouds:
  gridka:
    auth_type: v3applicationcredential
    auth:
      auth_url: https://keystone.gridka.de:5000
      application_credential_id: abc
      application_credential_secret: s3cret
    region_name: KA
    interface: internalURL
    verify: false
"""
PASSWORD = """\
clouds:
  gridka:
    auth:
      auth_url: https://keystone.gridka.de/identity/v2.0/
      username: drone
      password: 0123
      project-name: grid
      user_domain_name: Default
      project_domain_id: default
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OS_CLIENT_CONFIG_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def wanted(file: Path | None = None, **more: Any) -> CloudAccess:
    where = {"clouds_file": str(file)} if file else {}
    return CloudAccess.model_validate({"cloud": "gridka", **where, **more})


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str, **more: Any) -> Access:
    return clouds.read_access(wanted(written(tmp_path / "clouds.yaml", text), **more))


def refused(tmp_path: Path, text: str, **more: Any) -> str:
    settings = wanted(written(tmp_path / "clouds.yaml", text), **more)
    with pytest.raises(NoAccessError) as told:
        clouds.read_access(settings)
    assert told.value.kind is FaultKind.CONFIG
    assert "s3cret" not in str(told.value)
    [(path, message)] = clouds.access_problems(settings)
    assert (path, message) == (("clouds_file",), str(told.value))
    return message


def test_an_application_credential(tmp_path: Path) -> None:
    method = {
        "methods": ["application_credential"],
        "application_credential": {"id": "abc", "secret": "s3cret"},
    }
    assert read(tmp_path, APPLICATION) == Access(
        auth_url="https://keystone.gridka.de:5000/v3",
        user="application credential abc",
        secret="s3cret",
        identity={"identity": method},
        source=f"{tmp_path}/clouds.yaml: cloud `gridka`",
        region="KA",
        interface="internal",
        verify=False,
    )


def test_a_password_is_text_even_if_it_looks_like_a_number(tmp_path: Path) -> None:
    found = read(tmp_path, PASSWORD)
    user = {"name": "drone", "domain": {"name": "Default"}, "password": "0123"}
    grid = {"name": "grid", "domain": {"id": "default"}}
    method = {"methods": ["password"], "password": {"user": user}}
    assert (found.user, found.identity) == (
        "user drone",
        {"identity": method, "scope": {"project": grid}},
    )
    assert (found.auth_url, found.region) == ("https://keystone.gridka.de/identity/v3", "")
    assert (found.interface, found.verify) == ("public", True)


def test_the_site_file_comes_before_the_entry(tmp_path: Path) -> None:
    ca = written(tmp_path / "ca.pem", "")
    found = read(tmp_path, APPLICATION, region="HD", interface="public", ca=str(ca))
    assert (found.region, found.interface) == ("HD", "public")
    assert (found.verify, found.ca) == (True, ca), "who names authorities wants them believed"


def test_the_site_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    who = {
        "application_credential_id": "abc",
        "application_credential_secret": {"env": "CLOUD_SECRET"},
    }
    settings = CloudAccess.model_validate(
        {"auth": {"url": "https://k.example.org/identity/", **who}, "region": "KA"}
    )
    monkeypatch.setenv("CLOUD_SECRET", "one")
    found = clouds.read_access(settings)
    assert (found.auth_url, found.region) == ("https://k.example.org/identity/v3", "KA")
    assert (found.user, found.secret) == ("application credential abc", "one")
    monkeypatch.setenv("CLOUD_SECRET", "two")
    assert clouds.read_access(settings).secret == "two"
    monkeypatch.delenv("CLOUD_SECRET")
    with pytest.raises(
        NoAccessError, match="environment variable CLOUD_SECRET is empty or not set"
    ):
        clouds.read_access(settings)
    assert list(clouds.access_problems(settings)) == [], (
        "the site file's own secrets are looked at by who reads it"
    )


def test_the_first_file_found_is_the_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def region(place: str, name: str) -> Path:
        return written(home / place, APPLICATION.replace("KA", name))

    region(".config/openstack/clouds.yaml", "home")
    assert clouds.read_access(wanted()).region == "home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    region("xdg/openstack/clouds.yml", "xdg")
    assert clouds.read_access(wanted()).region == "xdg"
    region("work/clouds.yaml", "here")
    assert clouds.read_access(wanted()).region == "here"
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(region("other.yaml", "told")))
    assert clouds.read_access(wanted()).region == "told"
    assert clouds.read_access(wanted(region("own.yaml", "own"))).region == "own"


def test_no_file_at_all_is_told_with_where_it_was_looked_for(home: Path) -> None:
    with pytest.raises(
        NoAccessError, match=rf"no clouds\.yaml in {home}/work, {home}/\.config/openstack, /etc"
    ):
        clouds.read_access(wanted())
    with pytest.raises(NoAccessError, match=r"/none\.yaml: it cannot be read: No such file"):
        clouds.read_access(wanted(home / "none.yaml"))
    [(path, _)] = clouds.access_problems(wanted())
    assert path == ("cloud",)


def test_a_secure_yaml_beside_it_is_laid_over_it(home: Path) -> None:
    file = written(
        home / "clouds.yaml",
        APPLICATION.replace("      application_credential_secret: s3cret\n", ""),
    )
    with pytest.raises(
        NoAccessError,
        match=r"`application_credential_secret` is missing: .* in a secure\.yaml beside",
    ):
        clouds.read_access(wanted(file))
    secure = "clouds: {gridka: {auth: {application-credential-secret: SECRET}}, other: {}}"
    written(home / "secure.yaml", secure)
    assert clouds.read_access(wanted(file)).secret == "SECRET"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            ("gridka:", "gridkaa:"),
            "/clouds.yaml: there is no cloud `gridka` under `clouds`: did you mean `gridkaa`?",
        ),
        (
            ("auth_url", "auth_uri"),
            "/clouds.yaml: cloud `gridka`: `auth_url` is missing: write it under `auth`",
        ),
        (
            ("https://keystone", "keystone"),
            ": cloud `gridka`: `auth_url` is no address: write `https://",
        ),
        (
            ("credential_id: abc", "credential_id: [abc]"),
            "`application_credential_id`: a text on one line is wanted",
        ),
        (
            ("v3applicationcredential", "v3token"),
            "`auth_type` is `v3token`: only v3applicationcredential and password",
        ),
        (
            ("    verify: false", "    profile: vexxhost"),
            "`profile`: vendor profiles are not supported: write the",
        ),
        (("s3cret", "*s3cret"), "/clouds.yaml:7: not YAML here"),
        (("s3cret", "s3cret\x07"), "not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_its_repair(
    tmp_path: Path, change: tuple[str, str], told: str
) -> None:
    assert change[0] in APPLICATION
    assert told in refused(tmp_path, APPLICATION.replace(*change))


@pytest.mark.parametrize("text", ["", "[]", "clouds: []", "x" * 2_000_000, "[" * 2000])
def test_what_is_no_clouds_yaml_at_all(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    text = APPLICATION.replace("verify: false", f"cacert: {tmp_path}/none.pem")
    with pytest.raises(
        NoAccessError,
        match=rf"the authorities of {tmp_path}/none\.pem cannot be read: No such file",
    ):
        clouds.trusted_certificates(read(tmp_path, text))
    ca = written(tmp_path / "ca.pem", "no certificate")
    [(path, _)] = clouds.access_problems(wanted(tmp_path / "clouds.yaml", ca=str(ca)))
    assert path == ("ca",)
