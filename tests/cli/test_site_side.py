"""The site's side of a policy: what is rendered for its administrator, and the gaps that a live check finds."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from provisioner.answers.errors import Exit
from provisioner.answers.schemas import output_schemas
from tests.cli.conftest import Cli

SITE = '''
import asyncio
from pydantic import BaseModel
from provisioner.model import OwnerDemand, Node, OwnerLoad, SiteView
from provisioner.interfaces import AuditFinding, RejectedError

class Config(BaseModel):
    model_config = {"extra": "forbid"}
    fails: str = ""

class Plain:
    """A cluster that is looked at."""
    Config = Config

    def __init__(self, name, config, types, controller):
        self.name, self.config, self.entered = name, config, False

    async def __aenter__(self):
        self.entered = True
        return self

    async def __aexit__(self, *exc):
        self.entered = False

    async def poll(self):
        nodes = tuple(Node(f"topas-a100-{n}", ("a100",), 8000, 192, 1 << 20, 1 << 21, 1000 * n, 9, 9, 9)
                      for n in range(1, 4))
        claims = (OwnerDemand(2, 4000, 8, 1, 1.0), OwnerDemand(1, 0, 1, 1, 1.0))
        return SiteView(self.name, 1.0, {}, None, nodes, claims, OwnerLoad(1, 1000, 1, 1))

    async def start(self, orders):
        return []

    async def stop(self, orders):
        return []

class Telling(Plain):
    """One that also tells where it does not follow, and what it would have to configure."""

    async def audit(self, policy):
        assert self.entered
        if self.config.fails == "audit":
            raise RejectedError("the collector does not let us read its configuration")
        keeps = policy.blocking[0].cpus if policy.blocking else 0
        said = f"keeps 0 CPUs per free GPU, wanted {keeps}: put the block in place"
        gaps = [AuditFinding(f"topas-a100-{n}", "cpus", said)
                for n in (3, 2, 1)]
        return [*gaps, AuditFinding("topas-a100-2", "grace", "MaxVacateTime is 5 s, wanted 30 s"),
                AuditFinding("", "preemption", "drones are not preempted")]

    def render_blocking(self, policy):
        assert not self.entered, "rendering asks nothing of the site"
        if self.config.fails == "render":
            raise RejectedError("disk cannot be kept without a disk of its own")
        lines = [f"# {' '.join(kept.nodes)}: {kept.cpus} CPUs, {kept.memory_mib} MiB" for kept in policy.blocking]
        return "\\n".join([f"# grace {policy.grace_s:g} s", *lines])
'''


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with two site adapters, found as any is: by its entry points."""
    lib = tmp_path / "lib"
    egg = lib / "clusters-1.0.dist-info"
    egg.mkdir(parents=True)
    (lib / "cli_clusters.py").write_text(SITE)
    (egg / "METADATA").write_text("Metadata-Version: 2.1\nName: clusters\nVersion: 1.0\n")
    points = "plain-cluster = cli_clusters:Plain\ntelling-cluster = cli_clusters:Telling\n"
    (egg / "entry_points.txt").write_text(f"[provisioner.sites]\n{points}")
    monkeypatch.syspath_prepend(str(lib))
    return lib


KEEPS = "blocking: [{nodes: ['topas-a100-*'], cpus: 8, memory: 20 GiB}]\n"


def configured(place: Path, adapter: str, *, options: str = "{}", blocking: str = KEEPS) -> Path:
    """A valid configuration with one site, ``topas``, of ``adapter``."""
    path = place / "provisioner.yaml"
    path.write_text(
        "controller: kit\nstore: {path: record.db}\noverlay: {adapter: embedded, options: {path: queue.db}}\n"
        "sites: [topas.yaml]\n"
    )
    (place / "topas.yaml").write_text(
        f"site: topas\nadapter: {adapter}\noptions: {options}\n{blocking}"
        "types:\n  a100: {gpus: 1, cpus: 8, memory: 20 GiB, disk: 1 GiB}\n"
        "  cpu: {gpus: 0, cpus: 8, memory: 20 GiB, disk: 1 GiB}\n"
    )
    return path


@pytest.mark.parametrize(
    ("adapter", "options", "said"),
    [
        ("plain-cluster", "{}", "adapter plain-cluster of site topas cannot render blocking"),
        (
            "telling-cluster",
            "{fails: render}",
            "site topas: disk cannot be kept without a disk of its own",
        ),
    ],
)
def test_what_cannot_be_rendered_is_said(
    cli: Cli, lib: Path, adapter: str, options: str, said: str
) -> None:
    ran = cli(
        "render",
        "blocking",
        "--site",
        "topas",
        "--config",
        configured(lib.parent, adapter, options=options),
    )
    assert (ran.code, ran.out) == (Exit.FAILED, "") and said in ran.err


def test_a_site_file_alone_and_one_that_is_not_listed_are_rendered(cli: Cli, lib: Path) -> None:
    path = configured(lib.parent, "telling-cluster")
    path.write_text(
        path.read_text().replace("topas.yaml", "other.yaml").replace("embedded", "absent")
    )
    for config in (path, path.with_name("topas.yaml")):
        ran = cli("render", "blocking", "--site", "topas", "--config", config)
        assert (
            ran.code == Exit.OK and ran.out == "# grace 30 s\n# topas-a100-*: 8 CPUs, 20480 MiB\n"
        ), ran.err
    assert (
        "did you mean `topas`?"
        in cli("render", "blocking", "--site", "tpoas", "-c", lib.parent / "topas.yaml").err
    )


def test_without_blocking_the_line_to_add_is_said_and_is_right(cli: Cli, lib: Path) -> None:
    path = configured(lib.parent, "telling-cluster", blocking="")
    ran = cli("render", "blocking", "--site", "topas", "--config", path)
    assert (ran.code, ran.out) == (Exit.UNMET, "")
    assert f"{lib.parent / 'topas.yaml'}: site topas has no blocking" in ran.err
    (line,) = (
        line.strip() for line in ran.err.splitlines() if line.strip().startswith("blocking:")
    )
    configured(lib.parent, "telling-cluster", blocking=f"{line}\n")
    assert cli("render", "blocking", "--site", "topas", "--config", path).code == Exit.OK


def test_gaps_are_told_once_for_all_nodes_and_are_problems(cli: Cli, lib: Path) -> None:
    path = configured(lib.parent, "telling-cluster")
    ran = cli("check", path, "--live", "-o", "json")
    assert ran.code == Exit.UNMET
    jsonschema.validate(ran.json, output_schemas()[ran.json["schema"]])
    assert [(i["view"], i["ok"], i["dimension"], i["nodes"]) for i in ran.json["items"]] == [
        ("overlay", True, None, []),
        ("site:topas", True, None, []),
        ("site:topas", False, "cpus", ["topas-a100-1", "topas-a100-2", "topas-a100-3"]),
        ("site:topas", False, "grace", ["topas-a100-2"]),
        ("site:topas", False, "preemption", []),
    ]
    assert (
        ran.json["items"][2]["text"]
        == "keeps 0 CPUs per free GPU, wanted 8: put the block in place"
    )
    assert "3 gaps between policy and site: site:topas" in ran.err
    table = cli("check", path, "--live")
    assert table.code == Exit.UNMET and max(map(len, table.lines)) <= 100
    assert "topas-a100-[1-3]" in table.out and "topas-a100-2" in table.out


def test_a_look_tells_of_nodes_and_of_the_owner(cli: Cli, lib: Path) -> None:
    ran = cli("check", configured(lib.parent, "plain-cluster"), "--live", "-o", "json")
    assert ran.code == Exit.OK, ran.err
    assert ran.json["items"][1]["text"] == (
        "0 drones; 3 nodes with 6 of 24 GPUs free; the owner: 3 jobs wait for 8 GPUs, 1 job runs on 1 GPU"
    )
    table = cli("check", configured(lib.parent, "plain-cluster"), "--live").lines
    assert table[0].split() == ["VIEW", "OK", "SEEN"], "without gaps there are no columns of them"


def test_an_audit_that_fails_is_a_failed_look_beside_the_good_one(cli: Cli, lib: Path) -> None:
    path = configured(lib.parent, "telling-cluster", options="{fails: audit}")
    ran = cli("check", path, "--live", "-o", "json")
    assert ran.code == Exit.UNMET
    assert [(i["view"], i["ok"]) for i in ran.json["items"][1:]] == [
        ("site:topas", True),
        ("site:topas", False),
    ]
    assert ran.json["items"][2]["text"] == (
        "audit: the collector does not let us read its configuration"
    )
