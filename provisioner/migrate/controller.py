"""``BatchSystem`` and ``Plugins`` of TARDIS, and the pipeline of COBalD, as the controller file."""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from provisioner.config.schema import schema_address
from provisioner.config.units import parse_addresses
from provisioner.migrate.source import (
    CONVERTED,
    DROPPED,
    MISSING,
    ImportReport,
    KeyReader,
    YamlValue,
)
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

FILE = "provisioner.yaml"
_OPTIONS = f"{FILE}: overlay.options"
_UNUSED_POOL_KEYS = {
    "max_age": "nothing is cached: each tick polls once, and `policy.overlay_max_age` limits the age of a view",
    "ratios": (
        "utilisation and allocation steer nothing here: drones are started for jobs that wait, by what those ask for,"
        " and leave when idle (`policy.idle_timeout`)"
    ),
}
_POOL_ACCESS = (
    (
        "trust_domain",
        "TRUST_DOMAIN of the pool",
        "the issuer of its tokens: `condor_config_val TRUST_DOMAIN`",
    ),
    (
        "token",
        "{file: controller.token}",
        "TARDIS used the account that it ran as; make a token with READ, DAEMON and ADMINISTRATOR and name its file"
        " (docs/how-to/first-real-pool.md)",
    ),
    (
        "drone_signing_key",
        "file with a signing key of the pool",
        "your pilots brought their own credential; the controller signs a token for each drone"
        " (docs/reference/overlay-htcondor.md#tokens-of-drones)",
    ),
)
"""Options that TARDIS has no key for: name, what to fill in, and what that is."""


def overlay(given: KeyReader) -> YamlBlock:
    """Return ``overlay`` of the controller file."""
    setting = given.take("adapter")
    kind = setting.text or ""
    at = f"{FILE}: overlay.adapter"
    if kind == "HTCondor":
        given.converted("adapter", at)
    else:
        remedy = "the overlay is to be an HTCondor pool that you name"
        given.needed("adapter", at, f"drones join an HTCondor pool, not {kind or 'this'}: {remedy}")
    options = given.below("options")
    block = YamlBlock()
    pool = options.take("pool") if kind == "HTCondor" else MISSING
    collector = address(pool.text or "")
    if collector:
        block.put("collector", collector)
        options.converted("pool", f"{_OPTIONS}.collector", "drones must reach it too")
    else:
        block.put("collector", placeholder("host:9618 of the pool's collector"))
        text = "write the pool's collector as `host:port`; TARDIS took it from HTCondor's own configuration"
        reader, key = (options, "pool") if pool else (given, "")
        reader.needed(key, f"{_OPTIONS}.collector", text)
    for key, what, text in _POOL_ACCESS:
        block.put(key, placeholder(what))
        given.needed("", f"{_OPTIONS}.{key}", text)
    options.drop_rest(
        "an option of the tool that TARDIS asks with: the pool's collector is asked, for all drones at once"
    )
    given.drop(_UNUSED_POOL_KEYS)
    executor = given.take("executor")
    if executor and executor.kind != "ShellExecutor":
        text = "the pool is not asked over ssh: its collector and schedds must be reachable from here, with the token"
        given.needed("executor", f"{_OPTIONS}.token", text)
    elif executor:
        given.dropped("executor", "no shell is needed: HTCondor's bindings ask the pool")
    given.drop_rest("TARDIS knows no such key of a batch system")
    return YamlBlock({"adapter": "htcondor", "options": block})


_PORT = re.compile(r":\d{1,5}(\?|$)")


def address(pool: str) -> str:
    """Return ``-pool`` of HTCondor's tools as ``host:port``, several with commas between; "" if one is no host."""
    hosts = [each for each in re.split(r"[,\s]+", pool) if each]
    try:
        return parse_addresses(
            ",".join(each if _PORT.search(each) else f"{each}:9618" for each in hosts)
        )
    except ValueError:
        return ""


def plugins(given: KeyReader) -> None:
    """Report what becomes of ``Plugins``; nothing of them is written."""
    if given.take("SqliteRegistry"):
        text = (
            "the record is always kept, in a form of its own. Drones that TARDIS has started are unknown to it: stop"
            " TARDIS's demand and let them run out first"
        )
        given.changed("SqliteRegistry", f"{FILE}: store.path", text)
    given.drop_rest(
        "there are no plugins; the numbers are in `provisioner status`, `drones` and `events` (`-o json`)"
    )


def put_header(block: YamlBlock, schema: str, what: str) -> None:
    block.remark(f"yaml-language-server: $schema={schema_address(schema)}")
    block.remark("")
    block.remark(f"{what}, by `provisioner import`.")
    block.remark("Fill in each <...>: `provisioner check` names it with its line.")
    block.space()


def controller_file(
    source: str, block: YamlBlock, site_files: list[str], max_drones: tuple[int, str] | None
) -> str:
    """Return the text of the controller file. ``block``: its overlay."""
    whole = YamlBlock()
    put_header(whole, "controller", f"From {source}")
    whole.put("controller", placeholder("name of this controller: it begins each drone's id"))
    for key, value in (
        ("store", {"path": "var/provisioner.db"}),
        ("overlay", block),
        ("sites", site_files),
    ):
        whole.space()
        whole.put(key, value)
    if max_drones is not None:
        policy = YamlBlock()
        policy.put("max_drones", *max_drones)
        whole.space()
        whole.put("policy", policy)
    return str(whole)


_STEERING = (
    "drones are not scaled up and down by utilisation and allocation: each waiting job that no drone can take asks for"
    " one that fits, and idle drones leave after `policy.idle_timeout`. How fast: `limits.max_pending` and"
    " `limits.max_starts_per_tick` of each site"
)
_STEPS = {
    **dict.fromkeys(("LinearController", "RelativeSupplyController", "Stepwise"), _STEERING),
    **dict.fromkeys(("UnboundStepwise", "DemandSwitch"), _STEERING),
    "Logger": "every action is recorded with its reason: `provisioner events` and `provisioner plan`",
    "Buffer": "demand is not smoothed: nothing is started twice for one job, and `policy.idle_timeout` keeps drones",
}
_POOLS = {"TardisPoolFactory", "PoolFactory", "create_composite_pool"}


def tardis_file(pipeline: YamlValue) -> str:
    """Return the file that a step of ``pipeline`` names as TARDIS's configuration; empty if none does."""
    for step in pipeline.items:
        named = step.value.get("configuration") if isinstance(step.value, dict) else None
        if named is not None and named.text:
            return named.text
    return ""


class CoreLimit(NamedTuple):
    """The limit on cores at all sites together, and where it is written."""

    cores: float
    notes: ImportReport
    line: int
    key: str


def pipeline(root: KeyReader) -> CoreLimit | None:
    """Report what becomes of a COBalD configuration; return its limit, the lowest if there are several."""
    notes = root.notes
    setting = root.take("pipeline")
    limit: CoreLimit | None = None
    for n, step in enumerate(setting.items):
        path = f"pipeline[{n}]"
        key = f"{path} {step.tag}".strip()
        if step.kind in _POOLS:
            notes.add(CONVERTED, step.line, key, "the sites themselves", FILE)
        elif step.kind in ("Limiter", "Standardiser"):
            limit = _limit(KeyReader(YamlValue(step.value, step.line), path, notes), limit)
            notes.add(CONVERTED, step.line, key, "reported key by key")
        else:
            notes.add(
                DROPPED,
                step.line,
                key,
                _STEPS.get(step.kind, "a step of COBalD that nothing here does"),
            )
    root.drop(
        {
            "logging": "the controller logs to standard error; systemd keeps it",
            "__config_test": "a test of COBalD",
        }
    )
    root.drop_rest("a section of COBalD or of a plugin: nothing here reads it")
    return limit


def _limit(given: KeyReader, limit: CoreLimit | None) -> CoreLimit | None:
    """Report the keys of a Limiter or Standardiser; return the lower one of its limit and ``limit``."""
    most = given.take("maximum")
    cores = most.number
    if cores is not None and 0 < cores < (limit.cores if limit else inf):
        limit = CoreLimit(cores, given.notes, given.line_of("maximum"), given.name("maximum"))
    elif most and (cores is None or cores <= 0):
        given.dropped("maximum", "no number of cores: write `policy.max_drones`")
    given.drop(
        {
            "minimum": "there is no minimum: nothing is started for which no job waits",
            "granularity": "drones are whole anyway",
            "backlog": "`limits.max_pending` of each site limits the drones that have not joined yet",
            "surplus": "idle drones leave after `policy.idle_timeout`",
        }
    )
    given.drop_rest("unknown to COBalD")
    return limit
