"""``BatchSystem`` and ``Plugins`` of TARDIS, and the pipeline of COBalD, as the controller file."""

from __future__ import annotations

from math import inf

from provisioner.migrate.executors import kind_of
from provisioner.migrate.htcondor import address
from provisioner.migrate.report import ImportReport, KeyReader
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import Scalar, YamlBlock, placeholder

FILE = "provisioner.yaml"
_OPTIONS = f"{FILE}: overlay.options"
_RATIOS = (
    "utilisation and allocation steer nothing here: drones are started for jobs that wait, by what those ask for, and"
    " leave when idle (`policy.idle_timeout`)"
)
_POOL_QUERY = "an option of the tool that TARDIS asks with: the pool's collector is asked, for all drones at once"
_NUMBERS = "there is no such plugin; the numbers are in `provisioner status`, `drones` and `events`, all with `-o json`"
_PLUGINS = {"TelegrafMonitoring", "PrometheusMonitoring", "ElasticsearchMonitoring"}


def overlay(given: KeyReader) -> YamlBlock:
    """Return ``overlay`` of the controller file."""
    setting, key = given.take("adapter"), given.name("adapter")
    kind = (setting.text or "") if setting is not None else ""
    line = given.line_of(setting)
    block, notes = YamlBlock(), given.notes
    if kind == "FakeBatchSystem":
        notes.changed(line, key, f"{FILE}: overlay.adapter", "a queue in a file stands in for the fake pool")
        given.drop_rest("nothing is pretended: drones really run, and jobs come from `provisioner submit`")
        options = YamlBlock()
        options.put("path", "var/queue.db")
        block.put("adapter", "embedded")
        block.put("options", options)
        return block
    if kind == "HTCondor":
        notes.converted(line, key, f"{FILE}: overlay.adapter")
    else:
        notes.needed(
            line,
            key,
            f"{FILE}: overlay.adapter",
            f"drones join an HTCondor pool, not {kind or 'this'}: the overlay is to be an HTCondor pool that you name",
        )
    block.put("adapter", "htcondor")
    block.put("options", _pool(given, with_options=kind == "HTCondor"))
    return block


def _pool(given: KeyReader, *, with_options: bool) -> YamlBlock:
    block, notes = YamlBlock(), given.notes
    options = given.below("options")
    pool = options.take("pool") if with_options else None
    collector = address(pool.text or "") if pool is not None else ""
    if pool is not None and collector:
        block.put("collector", collector)
        notes.converted(pool.line, options.name("pool"), f"{_OPTIONS}.collector", "drones must reach it too")
    else:
        block.put("collector", placeholder("host:9618 of the pool's collector"))
        notes.needed(
            pool.line if pool else given.line,
            options.name("pool") if pool else given.path,
            f"{_OPTIONS}.collector",
            "write the pool's collector as `host:port`; TARDIS took it from HTCondor's own configuration",
        )
    for key, what, why in (
        ("trust_domain", "TRUST_DOMAIN of the pool", "the issuer of its tokens: `condor_config_val TRUST_DOMAIN`"),
        (
            "token",
            "{file: controller.token}",
            "TARDIS asked as whoever it ran as; make a token with READ, DAEMON and"
            " ADMINISTRATOR and name its file (docs/how-to/first-real-pool.md)",
        ),
        (
            "drone_token",
            "{file: drone.token}",
            "your pilots brought their own credential; make a token with READ,"
            " ADVERTISE_STARTD and ADVERTISE_MASTER and name its file",
        ),
    ):
        block.put(key, placeholder(what))
        notes.needed(given.line, given.path, f"{_OPTIONS}.{key}", why)
    options.drop_rest(_POOL_QUERY)
    given.drop(
        {
            "max_age": (
                "nothing is cached: each tick looks once, and `policy.overlay_max_age` says when a view is too old"
            ),
            "ratios": _RATIOS,
        }
    )
    executor = given.take("executor")
    if executor is not None and kind_of(executor) != "ShellExecutor":
        notes.needed(
            executor.line,
            given.name("executor"),
            f"{_OPTIONS}.token",
            "the pool is not asked over ssh: its collector and schedds must be reachable from here, with the token",
        )
    elif executor is not None:
        notes.dropped(executor.line, given.name("executor"), "no shell is needed: HTCondor's bindings ask the pool")
    given.drop_rest("TARDIS knows no such key of a batch system")
    return block


def plugins(given: KeyReader) -> None:
    """Report what becomes of ``Plugins``; nothing of them is written."""
    registry = given.take("SqliteRegistry")
    if registry is not None:
        given.notes.changed(
            registry.line,
            given.name("SqliteRegistry"),
            f"{FILE}: store.path",
            "the record is always kept, in a form of its own. Drones that TARDIS has started are unknown to it: stop"
            " TARDIS's demand and let them run out first",
        )
    for name, setting in given.left():
        key = given.name(name)
        if name in _PLUGINS:
            given.notes.dropped(setting.line, key, _NUMBERS)
        elif name == "Auditor":
            given.notes.dropped(
                setting.line,
                key,
                "nothing is sent to AUDITOR; `provisioner drones --ended -o json` has begin, end and size of each",
            )
        else:
            given.notes.dropped(
                setting.line, key, "there are no plugins; what it does is to be found out from its code"
            )


def header(what: str) -> tuple[str, str]:
    """Return the first lines of each file."""
    return (
        f"{what}, by `provisioner import`.",
        "What stands in <...> is yours to fill in: `provisioner check` names each with its line.",
    )


def controller_file(source: str, block: YamlBlock, site_files: list[str], max_drones: tuple[int, str] | None) -> str:
    """Return the text of the controller file. ``block``: its overlay."""
    whole, store, policy = YamlBlock(), YamlBlock(), YamlBlock()
    whole.remark("yaml-language-server: $schema=docs/reference/controller.schema.json")
    whole.remark("")
    for line in header(f"From {source}"):
        whole.remark(line)
    whole.space()
    whole.put("controller", placeholder("name of this controller: it begins each drone's id"))
    whole.space()
    store.put("path", "var/provisioner.db")
    whole.put("store", store)
    whole.space()
    whole.put("overlay", block)
    whole.space()
    sites: list[Scalar] = list(site_files)
    whole.put("sites", sites)
    if max_drones is not None:
        policy.put("max_drones", max_drones[0], max_drones[1])
        whole.space()
        whole.put("policy", policy)
    return str(whole)


_STEERING = (
    "drones are not scaled up and down by utilisation and allocation: each waiting job that no drone can take asks for"
    " one that fits, and idle drones leave after `policy.idle_timeout`. How fast: `limits.max_pending` and"
    " `limits.max_starts_per_tick` of each site"
)
_STEPS = {
    "LinearController": _STEERING,
    "RelativeSupplyController": _STEERING,
    "Stepwise": _STEERING,
    "UnboundStepwise": _STEERING,
    "DemandSwitch": _STEERING,
    "Logger": "every action is recorded with its reason: `provisioner events` and `provisioner plan`",
    "Buffer": "demand is not smoothed: nothing is started twice for one job, and `policy.idle_timeout` keeps drones",
}
_POOLS = {"TardisPoolFactory", "create_composite_pool"}


def tardis_file(pipeline: YamlValue | None) -> str:
    """Return the file that a step of ``pipeline`` names as TARDIS's configuration; empty if none does."""
    for step in pipeline.items if pipeline is not None else []:
        named = step.value.get("configuration") if isinstance(step.value, dict) else None
        if named is not None and named.text:
            return named.text
    return ""


class CobaldPipeline:
    """The ``pipeline`` of a COBalD configuration."""

    def __init__(self, notes: ImportReport) -> None:
        self.notes = notes
        self.cores: tuple[float, int, str] | None = None
        """The limit on cores at all sites together, with its line and key."""

    def read(self, root: KeyReader) -> None:
        setting = root.take("pipeline")
        for n, step in enumerate(setting.items if setting is not None else []):
            self._step(step, f"pipeline[{n}]")
        root.drop(
            {
                "logging": "the controller logs to standard error; systemd keeps it",
                "__config_test": "a test of COBalD",
            }
        )
        for key, service in root.left():
            if service.tag.removeprefix("!").removeprefix("Tardis") in ("RestApi", "RestService"):
                self.notes.dropped(service.line, key, "no REST here yet: `provisioner drones -o json` has what it gave")
            else:
                self.notes.dropped(service.line, key, "a section of COBalD or of a plugin: nothing here reads it")

    def _step(self, step: YamlValue, path: str) -> None:
        kind = kind_of(step)
        key = f"{path} {step.tag or ''}".strip()
        if kind in _POOLS or kind == "PoolFactory":
            self.notes.converted(step.line, key, FILE, "the sites themselves")
        elif kind in ("Limiter", "Standardiser"):
            self._limits(KeyReader(YamlValue(step.value, step.line), path, self.notes), step.line, key)
        else:
            self.notes.dropped(step.line, key, _STEPS.get(kind, "a step of COBalD that nothing here does"))

    def _limits(self, given: KeyReader, line: int, key: str) -> None:
        most = given.take("maximum")
        cores = most.number if most is not None else None
        if most is not None and cores is not None and 0 < cores < (self.cores[0] if self.cores else inf):
            self.cores = (cores, most.line, given.name("maximum"))
        elif most is not None and (cores is None or cores <= 0):
            self.notes.dropped(most.line, given.name("maximum"), "no number of cores: write `policy.max_drones`")
        given.drop(
            {
                "minimum": "there is no minimum: nothing is started for which no job waits",
                "granularity": "drones are whole anyway",
                "backlog": "`limits.max_pending` of each site says how many may be on their way",
                "surplus": "idle drones leave after `policy.idle_timeout`",
            }
        )
        given.drop_rest("unknown to COBalD")
        self.notes.converted(line, key, "", "told key by key")
