"""From files to settings: every key arrives where it belongs, in the inner unit."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st
from pydantic import BaseModel

from adapters.embedded.overlay import EmbeddedOverlayConfig as QueueConfig
from adapters.local.config import LocalSiteConfig as HostConfig
from provisioner import loader
from provisioner.config import ConfigError, OverlayConfig, check, load, models
from provisioner.config.accounts import secret_files
from provisioner.config.credentials import credentials_of
from provisioner.loader import AdapterBrokenError
from provisioner.model import (
    DroneType,
    Headroom,
    InferenceServer,
    MigLayout,
    Policy,
    Reserve,
    Service,
    Sharing,
    SitePolicy,
)

CONTROLLER = """\
controller: kit
store: {path: var/record.db, keep: 7d, snapshots: 10}
overlay:
  adapter: embedded
  options: {path: var/queue.db, lease: 1min}
sites: ["sites/*.yaml"]
policy:
  interval: 20s
  active_interval: 3s
  idle_timeout: 5min
  max_drones: 7
  max_gpus: 6.5
  overlay_max_age: 90s
  slot_max_age: 10min
  max_unhealthy_fraction: 0.3
  min_unhealthy: 4
"""

SITE = """\
site: big
adapter: local
enabled: false
limits: {max_drones: 5, max_gpus: 4, max_pending: 3, max_starts_per_tick: 2}
price: 1.5
queue_when_full: true
timeouts: {view_max_age: 3min, poll_deadline: 21s, order_deadline: 61s, order_confirm: 121s, missing: 31s, queued: 23h,
           booting: 11min, joining: 6min, slot_loss: 7min, draining: 22h, stopping: 2min, grace: 40s}
types:
  a100:
    gpus: 1
    gpu_model: A100-SXM4-40GB
    vram: 40 GiB
    capability: 8.0
    driver: "12.4"
    arch: aarch64
    cpus: 8
    memory: 20 GiB
    disk: 50 GB
    walltime: 24h
    sharing: time-sliced
    shares: 2
    price: 2
    max_drones: 2
    ad: {HasCVMFS: "true"}
options: {root: ../drones, cpus: 8}
"""

GONE = "No such file or directory"
REPOSITORY = Path(loader.__file__).resolve().parent.parent
CLOUD = """
from pydantic import BaseModel, Field
class Config(BaseModel):
    model_config = {"extra": "forbid"}
    speed: int = 0
    project: str = Field(default="", json_schema_extra={"places_drones": True})
class Cloud:
    Config = Config
    def poll(self): ...
    def start(self): ...
    def stop(self): ...
"""
InstallAdapter = Callable[..., str]


@pytest.fixture
def install_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallAdapter:
    """Install ``source`` as a module with site adapter ``name``; return the module's name."""

    def install(name: str, source: str = CLOUD, method: str = "") -> str:
        """``method``: a further method of ``Config``, indented by four."""
        module = f"adapter_module_{name}"
        (tmp_path / f"{module}.py").write_text(
            source.replace("class Cloud:", f"{method}\nclass Cloud:")
        )
        egg = tmp_path / f"{name}-1.0.dist-info"
        egg.mkdir()
        (egg / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (egg / "entry_points.txt").write_text(f"[provisioner.sites]\n{name} = {module}:Cloud\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return module

    return install


def written(directory: Path, *, controller: str = CONTROLLER, **sites: str) -> Path:
    (directory / "sites").mkdir(exist_ok=True)
    for name, text in sites.items():
        (directory / "sites" / f"{name}.yaml").write_text(text)
    file = directory / "provisioner.yaml"
    file.write_text(controller)
    return file


def test_every_key_arrives(tmp_path: Path) -> None:
    file = written(tmp_path, big=SITE)
    loaded = load(file)
    (site,) = loaded.sites
    (a100,), policy, limits = site.types, loaded.policy, site.policy
    assert (loaded.path, loaded.controller) == (file, "kit")
    assert (policy.interval_s, policy.active_interval_s) == (20, 3)
    assert loaded.store == models.StoreSection(
        path=tmp_path / "var/record.db", keep="7d", snapshots=10
    )
    assert loaded.overlay == OverlayConfig(
        "embedded", QueueConfig(path=tmp_path / "var/queue.db", lease="1min")
    )
    assert (policy.idle_timeout_s, policy.max_gpu_milli, policy.min_unhealthy) == (300, 6500, 4)
    assert (site.path, policy.sites) == (tmp_path / "sites/big.yaml", {"big": limits})
    assert (site.adapter, site.options) == ("local", HostConfig(root=tmp_path / "drones", cpus=8))
    assert (limits.enabled, limits.max_gpu_milli, limits.view_max_age_s, limits.grace_s) == (
        False,
        4000,
        180,
        40,
    )
    assert (a100.gpu_milli, a100.disk_mib, a100.capability, a100.driver) == (1000, 47684, 80, 12040)
    assert (a100.walltime_s, a100.margin_s, a100.sharing, a100.shares) == (
        86400,
        120 + 40,
        Sharing.TIME_SLICED,
        2,
    )


def test_what_is_left_out_has_the_defaults_of_the_model(tmp_path: Path) -> None:
    head = CONTROLLER.partition("policy:")[0]
    short = "site: s\nadapter: local\ntypes: {t: {gpus: 1, cpus: 1, memory: 1 GiB, disk: 1 GiB}}\noptions: {root: d}\n"
    loaded = load(written(tmp_path, controller=head, s=short))
    [site] = loaded.sites
    assert site.policy == SitePolicy(site="s")
    assert loaded.policy == Policy(sites={"s": site.policy})
    assert site.types == (
        DroneType(site="s", name="t", gpu_milli=1000, cpus=1, memory_mib=1024, disk_mib=1024),
    )


def test_a_trial_run_keeps_all_its_files_in_a_directory_of_its_own(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    loaded = load(written(tmp_path, big=SITE), root=trial / "in")
    assert loaded.store.path == trial / "in/var/record.db"
    assert loaded.overlay.options.path == trial / "in/var/queue.db"
    assert loaded.sites[0].options.root == trial / "drones"


def test_sites_are_found_in_order_and_once(tmp_path: Path) -> None:
    sites = {name: SITE.replace("site: big", f"site: {name}") for name in ("b", "a", "c")}
    controller = CONTROLLER.replace(
        '["sites/*.yaml"]', '[sites/c.yaml, "sites/*.yaml", "**/a.yaml"]'
    )
    loaded = load(written(tmp_path, controller=controller, **sites))
    assert [site.name for site in loaded.sites] == ["c", "a", "b"]


def with_adapter(name: str, options: str = "{project: x}") -> str:
    return (
        SITE.partition("options:")[0].replace("adapter: local", f"adapter: {name}")
        + f"options: {options}\n"
    )


def test_two_sites_with_their_drones_in_one_place_are_refused(
    tmp_path: Path, install_adapter: InstallAdapter
) -> None:
    """Each would take the other's drones for strays. What says where drones are, the adapter marks."""
    install_adapter("placed")
    sites = {
        name: with_adapter("placed", f"{{speed: 1, project: {project}}}").replace(
            "site: big", f"site: {name}"
        )
        for name, project in (("a", "gpu"), ("b", "other"), ("c", "gpu"))
    }
    [problem] = check(written(tmp_path, **sites)).problems
    assert problem.file == str(tmp_path / "sites/c.yaml")
    assert (
        problem.message
        == f"`project` is also that of {tmp_path}/sites/a.yaml: give each site a place of its own"
    )


def test_a_site_file_can_be_checked_alone_but_not_run(tmp_path: Path) -> None:
    written(tmp_path, big=SITE)
    site = tmp_path / "sites/big.yaml"
    assert check(site).problems == []
    with pytest.raises(ConfigError, match=r"big.yaml:1:1: this is a site file"):
        load(site)


def with_pool(options: str) -> str:
    before, after = CONTROLLER.index("overlay:"), CONTROLLER.index("sites:")
    return f"{CONTROLLER[:before]}overlay:\n  adapter: htcondor\n  options: {options}\n{CONTROLLER[after:]}"


def test_what_is_valid_but_hardly_meant_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    site = SITE.replace("cpus: 8}", "cpus: 8, same_account: true}")
    hasty = site.replace("stopping: 2min", "stopping: 40s")
    pool = (
        "\n    collector: cm.example.org:9618\n    trust_domain: example.org\n    token: {file: token}\n"
        "    drone_token: {env: NO_SUCH_TOKEN}"
    )
    file = written(tmp_path, controller=with_pool(pool), big=hasty)
    assert check(file).problems == []
    told = [str(warning).removeprefix(f"{tmp_path}/") for warning in load(file).warnings]
    assert told == [
        "provisioner.yaml:9:18: warning: `drone_token`: all drones share one token, and a job that gets it can pose as "
        "any drone until it expires. Set `drone_signing_key`, so that each drone gets a token of its own",
        f"provisioner.yaml:8:12: warning: `token`: secret file {tmp_path}/token cannot be read: {GONE}",
        "provisioner.yaml:9:18: warning: `drone_token`: secret environment variable NO_SUCH_TOKEN is empty or not set",
        "provisioner.yaml:6:16: warning: `cm.example.org:9618` is a placeholder: write the real name",
        "provisioner.yaml:7:19: warning: `example.org` is a placeholder: write the real name",
        "sites/big.yaml:8:85: warning: `stopping` (40s) is not longer than `grace` (40s): drones are stopped again "
        "before it is over",
    ]
    assert [
        str(each).removeprefix(f"{tmp_path}/")
        for each in check(tmp_path / "sites/big.yaml").warnings
    ] == told[5:6]
    real = pool.replace("cm.example.org", "cm.myexample.org").replace(
        ": example.org", ": example.org.cern.ch"
    )
    named = load(written(tmp_path, controller=with_pool(real), big=site))
    assert not [each for each in named.warnings if "placeholder" in str(each)]


SERVICES = """services:
  - {name: cms, at_most: 4, tokens: {cms: {file: cms.token}}, key: {env: NO_SUCH_KEY}}
  - {name: atlas, http_port: 9000, grpc_port: 9001}
balancer: {socket: run/admin.sock, host: balancer}
"""
SERVER = """
    server: {service: cms, models: ["deepmet:3"], command: exec tritonserver, first_port: 30000}
"""


def test_services_and_their_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    (tmp_path / "cms.token").write_text("secret")
    exclusive = SITE.replace("    sharing: time-sliced\n    shares: 2\n", "")
    served = exclusive.replace("options:", f"{SERVER.strip(chr(10))}\noptions:").replace(
        "cpus: 8}", "cpus: 8, same_account: true}"
    )
    file = written(tmp_path, controller=CONTROLLER + SERVICES, big=served)
    settings = load(file)
    cms, atlas = settings.policy.services
    assert cms == Service("cms", at_most=4)
    assert (atlas.http_port, atlas.grpc_port) == (9000, 9001)
    server = settings.types[0].server
    assert server == InferenceServer("cms", ("deepmet:3",), "exec tritonserver", first_port=30000)
    assert settings.types[0].service == "cms"
    assert settings.balancer and settings.balancer.socket == tmp_path / "run/admin.sock"
    names = [each.name for each in credentials_of(settings.services[0])]
    assert names == ["tokens.cms", "key"]
    assert list(secret_files(settings.services[0])) == [tmp_path / "cms.token"]
    assert [str(each).removeprefix(f"{tmp_path}/") for each in settings.warnings] == [
        "provisioner.yaml:18:68: warning: `key`: secret environment variable NO_SUCH_KEY is empty or not set",
        "provisioner.yaml:19:12: warning: no drone type has a server of service `atlas`: "
        "add `server: {service: atlas, ...}` to a type, or remove it",
    ]


@pytest.mark.parametrize(("line", "walltime_s"), [("    walltime: 2h\n", 7200), ("", 86400)])
def test_a_server_without_a_walltime_lives_for_a_day(
    tmp_path: Path, line: str, walltime_s: int
) -> None:
    exclusive = SITE.replace("    sharing: time-sliced\n    shares: 2\n", "")
    given = exclusive.replace("    walltime: 24h\n", line)
    served = given.replace("options:", f"{SERVER.strip(chr(10))}\noptions:")
    services = "services: [{name: cms}]\n"
    [kind] = load(written(tmp_path, controller=CONTROLLER + services, big=served)).types
    assert (kind.walltime_s, kind.margin_s) == (walltime_s, 120 + 40)


def test_services_without_their_library_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    served = SITE.replace("cpus: 8}", "cpus: 8, same_account: true}")
    file = written(tmp_path, controller=CONTROLLER + SERVICES, big=served)
    (problem,) = check(file).problems
    assert "install the extra `services`" in problem.message


def test_a_balancer_without_services_is_a_warning(tmp_path: Path) -> None:
    alone = SITE.replace("cpus: 8}", "cpus: 8, same_account: true}")
    file = written(tmp_path, controller=CONTROLLER + SERVICES.splitlines()[-1], big=alone)
    (warning,) = load(file).warnings
    assert warning.line == 17 and "`balancer` has no effect without `services`" in str(warning)


MIG_SITE = """site: big
adapter: local
mig: [{nodes: [n1], gpu_model: A100-40, layout: LAYOUT}, {nodes: [n2], gpu_model: A100-40, layout: [3g.20gb, 3g.20gb]}]
types:
  a100: {gpus: 1, cpus: 1, memory: 1 GiB, disk: 1 GiB, TYPE}
options: {root: drones}
"""


@pytest.mark.parametrize(
    ("layout", "kind", "line", "said"),
    [
        ("[2g.10gb, 2g.10gb, 2g.10gb]", "sharing: mig, shares: 3", 0, ""),
        ("[1g.5gb+me, 1g.5gb, 1g.5gb]", "sharing: mig, shares: 3", 0, ""),
        ("[2g.10gb, 2g.10gb, 2g.10gb]", "sharing: mig, shares: 2", 0, ""),
        ("[1g.5gb, 1g.5gb, 1g.5gb]", "sharing: mps, shares: 5", 0, ""),
        (
            "[1g.5gb, 1g.5gb, 1g.5gb]",
            "sharing: mig, shares: 4",
            5,
            "no layout of `mig` has 4 instances: write `shares: 2` or `3`, or correct `mig`",
        ),
        (
            "[3g.20gb, 2g.10gb, 1g.5gb, 1g.5gb]",
            "sharing: mig, shares: 4",
            5,
            "each share counts as an equal part, and 3g.20gb, 2g.10gb, 2 of 1g.5gb are unequal: write a type for each "
            "profile, without `sharing`",
        ),
        (
            "[1g.5gb]",
            "vendor: amd",
            3,
            "no drone type has GPUs of NVIDIA: remove `mig`, or correct `vendor`",
        ),
    ],
)
def test_types_that_do_not_fit_the_mig_layouts_are_a_warning(
    tmp_path: Path, layout: str, kind: str, line: int, said: str
) -> None:
    written(tmp_path, big=MIG_SITE.replace("LAYOUT", layout).replace("TYPE", kind))
    found = [(w.line, w.message) for w in check(tmp_path / "sites/big.yaml").warnings]
    assert found == ([(line, f"warning: {said}")] if said else [])


@pytest.mark.parametrize(
    ("low_use", "keep", "said"),
    [
        ("{action: warn, below: 0.1, window: 7d}", "7d", ""),
        ("{action: none}", "7d", ""),
        ("{below: 0.1}", "7d", "`below` has no effect without `action`: write `action: warn`"),
        ("{window: 8d}", "7d", "`window` has no effect without `action`: write `action: warn`"),
        (
            "{action: warn, window: 8d}",
            "7d",
            "`window` is longer than `store.keep` (7d), and older runs are deleted: write at most `7d`",
        ),
        (
            "{action: warn}",
            "3d",
            "`window` (7d) is longer than `store.keep` (3d), and older runs are deleted: write at most `3d`",
        ),
    ],
)
def test_settings_of_low_use_that_cannot_work_are_a_warning(
    tmp_path: Path, low_use: str, keep: str, said: str
) -> None:
    controller = CONTROLLER.replace("keep: 7d", f"keep: {keep}") + f"  low_use: {low_use}\n"
    file = written(tmp_path, controller=controller, big=SITE)
    assert check(file).problems == []
    assert [str(each).partition("warning: ")[2] for each in check(file).warnings] == (
        [said] if said else []
    )


def test_an_adapter_judges_types_with_its_options(
    tmp_path: Path, install_adapter: InstallAdapter
) -> None:
    """What the hook says is told where it points; and what it raises is the adapter's fault."""
    judging = (
        "    def type_conflicts(self, types):\n"
        "        yield ('types', types[0].name, 'gpus'), f'no {types[0].gpu_milli} here'\n"
        "        raise RuntimeError('not so')\n"
    )
    install_adapter("judging", method=judging)
    problems = check(written(tmp_path, big=with_adapter("judging"))).problems
    assert [(p.line, p.message) for p in problems] == [
        (11, "no 1000 here"),
        (26, "the adapter failed on its options: RuntimeError: not so"),
    ]


@pytest.mark.parametrize("hook", ["host_warnings(self)", "types_too_large(self, types)"])
def test_an_adapter_that_fails_when_asked_about_its_options_is_named(
    tmp_path: Path, install_adapter: InstallAdapter, hook: str
) -> None:
    name = f"failing_{hook.partition('(')[0]}"
    error = "ValueError: too many values to unpack (expected 2)"
    install_adapter(name, method=f"    def {hook}:\n        yield 'no pair'\n")
    file = written(tmp_path, big=with_adapter(name))
    found = check(file)
    told = [
        (p.line, p.message) for p in (*found.problems, *found.warnings) if "adapter" in p.message
    ]
    assert told == [(26, f"warning: the adapter failed on its options: {error}")]


@pytest.mark.parametrize(
    ("walltime", "margin_s"), [("24h", 160.0), ("20min", 160.0), ("10min", 100.0), ("1min", 46.0)]
)
def test_of_a_short_walltime_a_tenth_is_kept_for_the_start(
    tmp_path: Path, walltime: str, margin_s: float
) -> None:
    settings = load(written(tmp_path, big=SITE.replace("walltime: 24h", f"walltime: {walltime}")))
    assert settings.sites[0].types[0].margin_s == margin_s


MANGLED = st.text(alphabet="a0:-[]{}\"'&*!|>%@`#?,~<. \n\t\0\x85\ufeff\u2028é", max_size=6)


@settings(max_examples=300, deadline=None)
@example(at=0, cut=0, put="!0\n")  # a tag on the whole file
@example(at=153, cut=0, put="\n\n")  # a line break within a pattern
@given(st.integers(0, len(CONTROLLER) + len(SITE) - 1), st.integers(0, 12), MANGLED)
def test_however_a_file_is_mangled_the_answer_is_a_list_of_problems(
    at: int, cut: int, put: str
) -> None:
    both, first = CONTROLLER + SITE, len(CONTROLLER)
    mangled = both[:at] + put + both[at + cut :]
    first += len(put) - cut if at < first else 0
    with tempfile.TemporaryDirectory() as directory:
        file = written(Path(directory), controller=mangled[:first], big=mangled[first:])
        for problem in check(file).problems:
            assert problem.line >= 1 and "\n" not in problem.message


def test_of_thousands_of_unknown_keys_the_first_hundred_are_reported(tmp_path: Path) -> None:
    """Each has its nearest valid name looked for: a file of another program took minutes."""
    path = tmp_path / "provisioner.yaml"
    path.write_text("controller: kit\n" + "".join(f"key{n}: 1\n" for n in range(20_000)))
    problems = check(path).problems
    assert len(problems) == 101 and "more than 100 problems" in " ".join(
        p.message for p in problems
    )


@pytest.mark.parametrize(
    ("section", "target", "elsewhere"),
    [
        (models.PolicySection, Policy, set()),
        (models.HeadroomSection, Headroom, {"hours"}),
        (models.LimitsSection, SitePolicy, set()),
        (models.TimeoutsSection, SitePolicy, set()),
        (models.OwnerSection, SitePolicy, set()),
        (models.BlockingSection, Reserve, set()),
        (models.MigSection, MigLayout, set()),
        (models.TypeSection, DroneType, set()),
        (models.ServerSection, InferenceServer, set()),
        (models.ServiceSection, Service, {"tokens", "key"}),
    ],
)
def test_each_key_has_a_field_of_the_same_name(
    section: type[BaseModel], target: type, elsewhere: set[str]
) -> None:
    """A key whose field has another name would be ignored."""
    assert section.model_fields.keys() - {each.name for each in fields(target)} == elsewhere


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import no_such_library\n",
            "cannot be imported: Python module `no_such_library` is missing",
        ),
        (
            "raise OSError('libslurm.so: cannot open')\n",
            r"cannot be imported: OSError: libslurm.so: cannot open",
        ),
        ("x = 1\n", "has no attribute 'Cloud'"),
        ("class Cloud: ...\n", "has no `Config`"),
        (
            "class Cloud: interface_version = 2\n",
            "is for version 2 of the interface of adapters, this provisioner has version 1: install",
        ),
        (CLOUD.replace('"forbid"', '"allow"'), "lets unknown options pass"),
        (CLOUD.replace("def stop", "def halt"), "lacks the methods stop"),
    ],
)
def test_an_adapter_that_cannot_be_used_says_why(
    install_adapter: InstallAdapter, source: str, words: str
) -> None:
    name = f"broken{abs(hash(words))}"
    module = install_adapter(name, source)
    with pytest.raises(AdapterBrokenError, match=words) as raised:
        loader.site_adapter(name)
    assert f"site adapter `{name}` ({module}:Cloud)" in str(raised.value)


def test_another_package_of_our_name_is_told_by_its_place(tmp_path: Path) -> None:
    other = tmp_path / "adapters"
    other.mkdir()
    (other / "__init__.py").write_text("")
    script = "from provisioner import loader\nloader.site_adapter('local')"
    env = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [sys.executable, "-c", script]
    run = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 1
    told = f"lives in package `adapters` at {REPOSITORY}/adapters, but Python finds {other} under that name"
    assert told in run.stderr
