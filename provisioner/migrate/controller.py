"""``BatchSystem`` and ``Plugins`` of TARDIS as our controller file."""

from __future__ import annotations

from provisioner.migrate.executors import kind_of
from provisioner.migrate.htcondor import address
from provisioner.migrate.section import Section
from provisioner.migrate.written import Block, Scalar, wanted

FILE = "provisioner.yaml"
_OPTIONS = f"{FILE}: overlay.options"
_RATIOS = (
    "utilisation and allocation steer nothing here: drones are started for jobs that wait, by what those ask for, and"
    " leave when idle (`policy.idle_timeout`)"
)
_POOL_QUERY = "an option of the tool that TARDIS asks with: the pool's collector is asked, for all drones at once"
_NUMBERS = "there is no such plugin; the numbers are in `provisioner status`, `drones` and `events`, all with `-o json`"
_PLUGINS = {"TelegrafMonitoring", "PrometheusMonitoring", "ElasticsearchMonitoring"}


def overlay(given: Section) -> Block:
    """``overlay`` of the controller file."""
    told, key = given.take("adapter"), given.name("adapter")
    kind = (told.text or "") if told is not None else ""
    line = told.line if told is not None else given.line
    block, notes = Block(), given.notes
    if kind == "FakeBatchSystem":
        notes.changed(line, key, f"{FILE}: overlay.adapter", "a queue in a file stands in for the fake pool")
        given.drop_rest("nothing is pretended: drones really run, and jobs come from `provisioner submit`")
        options = Block()
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


def _pool(given: Section, *, with_options: bool) -> Block:
    block, notes = Block(), given.notes
    options = given.below("options")
    pool = options.take("pool") if with_options else None
    collector = address(pool.text or "") if pool is not None else ""
    if pool is not None and collector:
        block.put("collector", collector)
        notes.converted(pool.line, options.name("pool"), f"{_OPTIONS}.collector", "drones must reach it too")
    else:
        block.put("collector", wanted("host:9618 of the pool's collector"))
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
        block.put(key, wanted(what))
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


def plugins(given: Section) -> None:
    """What becomes of ``Plugins``; nothing of them is written."""
    registry = given.take("SqliteRegistry")
    if registry is not None:
        given.notes.changed(
            registry.line,
            given.name("SqliteRegistry"),
            f"{FILE}: store.path",
            "the record is always kept, in a form of its own. Drones that TARDIS has started are unknown to it: stop"
            " TARDIS's demand and let them run out first",
        )
    for name, told in given.left():
        key = given.name(name)
        if name in _PLUGINS:
            given.notes.dropped(told.line, key, _NUMBERS)
        elif name == "Auditor":
            given.notes.dropped(
                told.line,
                key,
                "nothing is sent to AUDITOR; `provisioner drones --ended -o json` has begin, end and size of each",
            )
        else:
            given.notes.dropped(told.line, key, "there are no plugins; what it does is to be found out from its code")


def header(what: str) -> tuple[str, str]:
    """First lines of each file."""
    return (
        f"{what}, by `provisioner import`.",
        "What stands in <...> is yours to fill in: `provisioner check` names each with its line.",
    )


def controller_file(source: str, block: Block, site_files: list[str], max_drones: tuple[int, str] | None) -> str:
    """The whole file. ``block``: its overlay."""
    whole, store, policy = Block(), Block(), Block()
    whole.remark("yaml-language-server: $schema=docs/reference/controller.schema.json")
    whole.remark("")
    for line in header(f"From {source}"):
        whole.remark(line)
    whole.space()
    whole.put("controller", wanted("name of this controller: it begins each drone's id"))
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
