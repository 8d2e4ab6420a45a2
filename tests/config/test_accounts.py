"""Refusal of drones whose account can read a secret of the controller, at every kind of site."""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner import config as configuration
from provisioner.config import ConfigError

OWN = pwd.getpwuid(os.geteuid()).pw_name
TYPES = (
    "types: {a100: {gpus: 1, vram: 40 GiB, cpus: 1, memory: 1 GiB, disk: 1 MiB, walltime: 1h}}\n"
)
EMBEDDED = "overlay: {adapter: embedded, options: {path: queue.db}}\n"
HTCONDOR = """\
overlay:
  adapter: htcondor
  options: {collector: "pool.test:9618", trust_domain: pool.test, token: {file: token}, drone_signing_key: drones.key}
"""
LOCAL = "root: drones\n  gpus: [{count: 1, vram: 40 GiB}]"
SSH = f"ssh: {{host: localhost, user: {OWN}, key: id}}"
SITES = {
    "local": ("local", LOCAL),
    "local-root": ("local", f"{LOCAL}\n  account: root"),
    "local-own": ("local", f"{LOCAL}\n  account: {OWN}"),
    "slurm-tools": ("slurm", "transport: tools"),
    "slurm-ssh": ("slurm", f"tools: {{{SSH}}}"),
    "slurm-native": ("slurm", "transport: native"),
    "slurm-socket": ("slurm", 'transport: rest\n  rest: {url: "unix:/run/slurmrestd"}'),
    "slurm-socket-ssh": (
        "slurm",
        f'transport: rest\n  rest: {{url: "unix:/run/slurmrestd", {SSH}}}',
    ),
    "slurm-rest": (
        "slurm",
        f'transport: rest\n  rest: {{url: "https://s.test", user: {OWN}, token: {{file: token}}}}',
    ),
    "htcondor-tools": (
        "htcondor",
        'transport: tools\n  collector: "c.test:9618"\n  work_directory: work',
    ),
    "htcondor-ssh": (
        "htcondor",
        f'transport: tools\n  collector: "c.test:9618"\n  work_directory: work\n  tools: {{{SSH}}}',
    ),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every account may pass, with the controller's secrets in it."""
    path = Path(tempfile.mkdtemp(prefix="accounts-"))
    path.chmod(0o711)
    for name in ("token", "drones.key", "id"):
        (path / name).touch(mode=0o600)
    yield path
    shutil.rmtree(path)


def problems(place: Path, site: tuple[str, str], *options: str, overlay: str = HTCONDOR) -> str:
    """Return what `check` finds, which `run` and `reload` refuse too."""
    adapter, own = site
    text = f"site: here\nadapter: {adapter}\n{TYPES}options:\n  {own or '{}'}\n" + "".join(
        f"  {each}\n" for each in options
    )
    (place / "here.yaml").write_text(text)
    (place / "provisioner.yaml").write_text(
        f"controller: kit\nstore: {{path: r.db}}\n{overlay}sites: [here.yaml]\n"
    )
    found = "\n".join(map(str, configuration.check(place / "provisioner.yaml").problems))
    if "every job" in found:
        with pytest.raises(ConfigError, match="every job"):
            configuration.load(place / "provisioner.yaml")
    return found


@pytest.mark.parametrize("kind", SITES)
def test_the_controllers_own_account_is_refused_at_every_kind_of_site(
    place: Path, kind: str
) -> None:
    """Whoever runs `check`, root too: the controller may run under another account than the operator's."""
    assert "every job could read its tokens" in problems(place, SITES[kind])
    assert "every job" not in problems(place, SITES[kind], "same_account: true"), (
        "it was said by name"
    )
    assert "every job" not in problems(place, SITES[kind], overlay=EMBEDDED), (
        "the jobs are the operator's own"
    )


def test_jobs_of_others_in_an_embedded_queue_need_an_account_too(place: Path) -> None:
    (place / "queue.db").touch()
    (place / "queue.db").chmod(0o660)
    assert "every job" in problems(place, SITES["local"], overlay=EMBEDDED)


def test_root_is_told_what_the_controllers_account_will_be(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another owner of the record needs root")
    owner = pwd.getpwnam("nobody")
    os.chown(place, owner.pw_uid, owner.pw_gid)
    assert "nobody, which is root or the controller's own account" in problems(
        place, ("local", f"{LOCAL}\n  account: nobody")
    )


@pytest.mark.parametrize("file", ["token", "drones.key"])
def test_an_account_that_can_read_a_secret_is_refused(place: Path, file: str) -> None:
    site = ("local", f"{LOCAL}\n  account: nobody")
    assert "every job" not in problems(place, site)
    (place / file).chmod(0o604)
    assert f"nobody, which can read {place}/{file}" in problems(place, site)
    place.chmod(0o700)
    assert "every job" not in problems(place, site), "it cannot pass the directory"


@pytest.mark.parametrize(
    ("tag", "name"),
    [(0x02, pwd.getpwnam("nobody").pw_uid), (0x08, pwd.getpwnam("nobody").pw_gid)],
    ids=["user", "group"],
)
def test_an_account_that_an_acl_lets_read_a_secret_is_refused(
    place: Path, tag: int, name: int
) -> None:
    site = ("local", f"{LOCAL}\n  account: nobody")

    def acl(mask: int) -> bytes:
        own = [(0x01, 6, -1), (tag, 4, name), (0x04, 0, -1), (0x10, mask, -1), (0x20, 0, -1)]
        entries = sorted(own, key=lambda each: each[0])
        return struct.pack("<I", 2) + b"".join(
            struct.pack("<HHI", *each[:2], each[2] & 0xFFFFFFFF) for each in entries
        )

    try:
        os.setxattr(place / "token", "system.posix_acl_access", acl(mask=0))
    except OSError as error:
        pytest.skip(f"no ACLs here: {error}")
    assert "every job" not in problems(place, site), "the mask takes it away"
    os.setxattr(place / "token", "system.posix_acl_access", acl(mask=4))
    assert f"nobody, which can read {place}/token" in problems(place, site)


@pytest.mark.parametrize("exists", [False, True])
def test_an_account_in_the_group_of_the_record_is_refused(place: Path, exists: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("the group of another account needs root")
    site = ("local", f"{LOCAL}\n  account: nobody")
    os.chown(place, 0, pwd.getpwnam("nobody").pw_gid)
    if exists:
        (place / "r.db").touch(mode=0o640)
        os.chown(place / "r.db", 0, pwd.getpwnam("nobody").pw_gid)
    assert f"nobody, which can read {place}/r.db" in problems(place, site)
    os.chown(place, 0, 0)
    assert ("every job" in problems(place, site)) is exists


SOURCE = """\
from pydantic import BaseModel
class Config(BaseModel):
    model_config = {{"extra": "forbid"}}
class Site:
    Config = Config
    on_this_host = {here}
    def poll(self): ...
    def start(self): ...
    def stop(self): ...
"""


@pytest.mark.parametrize("here", [True, False])
def test_an_adapter_that_says_nothing_has_the_controllers_account(
    place: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    name = f"third{here}".lower()
    (place / f"{name}.py").write_text(SOURCE.format(here=here))
    (place / f"{name}-1.0.dist-info").mkdir()
    (place / f"{name}-1.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (place / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(
        f"[provisioner.sites]\n{name} = {name}:Site\n"
    )
    monkeypatch.syspath_prepend(str(place))
    found = problems(place, (name, ""))
    assert "site adapter" not in found and ("every job" in found) is here
