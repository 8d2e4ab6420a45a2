"""What an operator writes about an OpenStack site: what passes, what it comes to, how the rest is told, at its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from adapters.openstack.settings import OpenStackSiteConfig
from provisioner.config import ConfigError, check, load

LEAST = {"cloud": "gridka", "image": "drone", "types": {"h100": {"flavor": "gpu.h100.1"}}}
HOST = {"names": ["gk-gpu-01"], "gpus": 4, "cpus": 128, "memory": "1 TiB", "disk": "6 TB"}
AUTH = {
    "url": "https://keystone.example.org:5000",
    "application_credential_id": "0123abcd",
    "application_credential_secret": {"env": "OS_SECRET"},
}


def config(**options: object) -> OpenStackSiteConfig:
    return OpenStackSiteConfig.model_validate({**LEAST, **options})


def refused(**options: object) -> str:
    with pytest.raises(ValidationError) as found:
        config(**options)
    [error] = found.value.errors()
    return str(error["msg"])


def test_a_cloud_is_named_once_and_an_owners_wants_hosts() -> None:
    assert "one of `cloud`" in refused(cloud="")
    assert "goes with `cloud`" in refused(cloud="", auth=AUTH, clouds_file="clouds.yaml")
    assert "`hosts` is wanted with `owner`" in refused(owner={"cloud": "owner"})
    assert "one of `cloud`" in refused(hosts=[HOST], owner={"names": "^etp-"})
    assert "no regular expression" in refused(
        hosts=[HOST], owner={"cloud": "owner", "names": "etp-("}
    )
    owner = config(hosts=[HOST], owner={"cloud": "owner", "names": "^etp-", "wait": "2h"}).owner
    assert owner is not None and (owner.names, owner.wait) == ("^etp-", 7200.0)


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"env": {name: "1"}}
            for name in ("PROVISIONER_X", "drone_id", "_CONDOR_X", "CUDA_VISIBLE_DEVICES", "A B")
        ),
        *({"metadata": {key: "x"}} for key in ("provisioner_drone", "a key")),
        *({"image": each} for each in ("a/b", " a", "a\nb")),
        *(
            {"cloud": "", "auth": {**AUTH, "url": url}}
            for url in ("ftp://k.example.org", "https://me:pw@k.example.org")
        ),
        {"scratch": "/var/$(id)"},
        *({"types": each} for each in ({}, {"h100": {}})),
        *(
            {"hosts": [{**HOST, **each}]}
            for each in ({"names": []}, {"gpus": 0}, {"names": ["gk-gpu-[01-08]"]})
        ),
        *({"interface": "outside"}, {"server_group": "my group"}, {"boot_volume": {"size": "60"}}),
        *({"retain_finished": "10s"}, {"console_lines": -1}, {"parallel": 0}, {"flavour": "gpu"}),
    ],
    ids=str,
)
def test_what_means_nothing_is_refused(options: dict[str, object]) -> None:
    assert refused(**options)


CONTROLLER = """
controller: kit
store: {path: provisioner.db}
overlay: {adapter: embedded, options: {path: queue.db}}
sites: [gridka.yaml]
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a configuration whose site file is ``GOOD`` with one text in the place of another; its path."""

    def write(right: str = "", wrong: str = "") -> Path:
        assert right in GOOD
        (tmp_path / "provisioner.yaml").write_text(CONTROLLER)
        (tmp_path / "gridka.yaml").write_text(GOOD.replace(right, wrong, 1))
        return tmp_path / "provisioner.yaml"

    return write


GOOD = """\
site: gridka
adapter: openstack
types:
  h100: {gpus: 1, cpus: 16, memory: 120 GiB, disk: 100 GiB}
options:
  cloud: gridka
  image: drone
  types:
    h100: {flavor: gpu.h100.1}
  hosts:
    - {names: [gk-gpu-01], types: [h100], gpus: 4, cpus: 128, memory: 1 TiB, disk: 6 TB}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("cloud: gridka", "region: KA", {"6:3": "write `cloud: NAME`"}),
        (
            "h100: {flavor",
            "h10: {flavor",
            {"8:3": "`h100` has no flavour", "9:5": "there is no drone type `h10`"},
        ),
        ("image: drone", "setup: setup.sh", {"9:5": "has no image: write `image: NAME`"}),
        ("image: drone", "image: drone\n  env: {DRONE_ID: x}", {"8:19": "is set by the site"}),
    ],
)
def test_mistakes_are_told_where_they_stand(
    write: Any, right: str, wrong: str, told: dict[str, str]
) -> None:
    assert check(write()).problems == []
    file = write(right, wrong)
    found = {f"{p.line}:{p.col}": p for p in check(file).problems}
    assert found.keys() == told.keys(), [*map(str, found.values())]
    assert all(words in found[spot].message for spot, words in told.items()), found
    assert {each.file for each in found.values()} == {str(file.with_name("gridka.yaml"))}
    with pytest.raises(ConfigError):
        load(file)


def test_a_secret_is_never_written_down(write: Any) -> None:
    auth = "auth: {url: 'https://k.example.org', application_credential_id: a1, application_credential_secret: hunter2}"
    [problem] = check(write("cloud: gridka", auth)).problems
    assert problem.line == 6 and "`{file: path}` or `{env: NAME}`" in problem.message
    assert "hunter2" not in str(problem)


def test_a_cloud_that_is_not_known_here_is_a_warning_for_us_and_for_the_owner(write: Any) -> None:
    owner = "owner: {cloud: etp, clouds_file: nowhere.yaml}"
    file = write("cloud: gridka", f"cloud: gridkA\n  clouds_file: clouds.yaml\n  {owner}")
    file.with_name("clouds.yaml").write_text("clouds:\n  gridka:\n    auth: {}\n")
    ours, theirs = map(str, load(file).warnings)
    assert re.search(
        r"gridka\.yaml:7:\d+: warning: .*there is no cloud `gridkA`.*did you mean `gridka`", ours
    )
    assert re.search(r"gridka\.yaml:8:\d+: warning: .*nowhere\.yaml: it cannot be read", theirs)


@pytest.mark.parametrize(
    ("named", "warned"),
    [("types: [h100]", True), ("types: [h100, v100s]", False), ("types: []", False)],
)
def test_a_drone_type_that_no_host_has_is_a_warning(write: Any, named: str, warned: bool) -> None:
    file = write("types: [h100]", named)
    site = file.with_name("gridka.yaml")
    second = "  v100s: {gpus: 1, cpus: 16, memory: 120 GiB, disk: 100 GiB}\noptions:\n"
    flavors = "    h100: {flavor: gpu.h100.1}\n    v100s: {flavor: gpu.v100.1}\n"
    site.write_text(
        site.read_text()
        .replace("options:\n", second)
        .replace("    h100: {flavor: gpu.h100.1}\n", flavors)
    )
    assert (
        any("`v100s` is never started: no host has it" in str(each) for each in load(file).warnings)
        is warned
    )
