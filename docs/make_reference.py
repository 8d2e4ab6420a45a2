"""Write the reference pages and JSON Schemas that are made from the code: ``python -m docs.make_reference``."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
import yaml

from docs import configuration_pages
from provisioner import reasons, reasons as r
from provisioner.answers.errors import Exit
from provisioner.answers.query import ListQuery, Query, parameters
from provisioner.answers.schemas import output_schemas
from provisioner.cli.__main__ import VERBS, LazyVerbs, app
from provisioner.cli.options import EXIT_HELP, Screen, Where
from provisioner.config.schema import controller_schema, schema_text, site_schema
from provisioner.monitoring import metrics
from provisioner.monitoring.metrics import METRICS
from provisioner.simulator import report

ROOT = Path(__file__).parents[1]
REFERENCE = Path(__file__).parent / "reference"
MONITORING = Path(metrics.__file__).parent

# ---------------------------------------------------------------------------------------------------------
# command line

OPTION_GROUPS = {"Where": (Where,), "Show": (Query, Screen), "Pick": (ListQuery,)}
SHARED_OPTIONS = {
    parameter.field: group
    for group, kinds in reversed(OPTION_GROUPS.items())
    for kind in kinds
    for parameter in parameters(kind)
}
OPTION_GROUP_WORDS = {
    "Where": "Record",
    "Show": "Output",
    "Pick": "Rows",
}


def cli_page() -> str:
    """Return ``docs/reference/cli.md``."""
    root = typer.main.get_command(app)
    assert isinstance(root, LazyVerbs)
    context = typer.Context(root, info_name="provisioner")
    lines = [
        configuration_pages.NOTICE,
        "",
        "# The command line",
        "",
        *_prose(root.help or ""),
        "",
        "## Exit codes",
        "",
        *_exit_codes(),
        "",
        "## Shared options",
        "",
        *_shared_options(root, context),
    ]
    for verb in VERBS:
        command = root.get_command(context, verb)
        lines += _verb(f"provisioner {verb}", command, context, "##")
    return "\n".join(lines).rstrip() + "\n"


def _exit_codes() -> Iterator[str]:
    parts = EXIT_HELP.removeprefix("Exit codes: ").rstrip(".").split(";")
    meanings = dict(part.strip().split(" ", 1) for part in parts)
    for code in Exit:
        yield f"- `{code.value}`: {meanings[str(code.value)]}"


def _shared_options(root: LazyVerbs, context: Any) -> Iterator[str]:
    command = root.get_command(context, "drones")
    for group, title in OPTION_GROUP_WORDS.items():
        options = [p for p in command.params if SHARED_OPTIONS.get(p.name) == group]
        yield from [f"### {title}", "", *(_parameter(p, context) for p in options), ""]
    yield from ["### Several verbs", "", *_repeated(root, context).values(), ""]


@functools.cache
def _repeated(root: LazyVerbs, context: Any) -> dict[str, str]:
    """Return by name the options that several verbs have with the same words."""
    found: Counter[tuple[str, str]] = Counter()
    ahead = [root.get_command(context, verb) for verb in VERBS]
    while ahead:
        command = ahead.pop()
        ahead += getattr(command, "commands", {}).values()
        found.update((_spelled(p), _parameter(p, context)) for p in _own_options(command))
    often = [item for item, number in found.most_common() if number > 1]
    chosen = dict(reversed(often))  # the most common words of a name
    return dict(sorted(chosen.items()))


def _own_options(command: Any) -> list[Any]:
    options = [p for p in command.params if p.param_type_name == "option"]
    return [p for p in options if p.name not in (*SHARED_OPTIONS, "help")]


def _spelled(option: Any) -> str:
    return f"`{max(option.opts, key=len)}`"


def _verb(path: str, command: Any, context: Any, level: str) -> list[str]:
    """Return the section of a verb and of those below it."""
    names = {p.name for p in command.params}
    repeated = _repeated(context.command, context)
    shared = [
        f"[{title.lower()}](#{title.lower()})"
        for group, title in OPTION_GROUP_WORDS.items()
        if any(SHARED_OPTIONS.get(name) == group for name in names)
    ]
    items = [_parameter(p, context) for p in command.params if p.param_type_name == "argument"]
    for option in _own_options(command):
        text = _parameter(option, context)
        if repeated.get(_spelled(option)) == text:
            shared.append(_spelled(option))
        else:
            items.append(text)
    items += [f"- Shared: {', '.join(shared)}."] if shared else []
    lines = [f"{level} `{path}`", "", *_prose(command.help or ""), "", *items, ""]
    for name, below in getattr(command, "commands", {}).items():
        lines += _verb(f"{path} {name}", below, context, level + "#")
    return lines


def _parameter(parameter: Any, context: Any) -> str:
    """Return an option or argument as its help shows it."""
    name, meaning = parameter.get_help_record(context) or ("", "")
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name) + (" ..." if parameter.nargs == -1 else "")
        meaning = meaning.removesuffix("[required]").rstrip()
    meaning = re.sub(r" \[x>=0\]|; x>=0", "", meaning)
    return f"- `{' '.join(name.split())}`: {' '.join(meaning.split())}"


def _prose(help_text: str) -> list[str]:
    """Return the help as Markdown: examples, marked by a backspace for the terminal, become code."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(help_text).split("\n\n"):
        if paragraph.startswith("\b\nExamples:"):
            lines += [
                "```console",
                *(f"$ {line.strip()}" for line in paragraph.splitlines()[2:]),
                "```",
            ]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines


# --------------------------------------------------------------------------------------------------------------
# reasons

CATEGORY_WORDS = {
    reasons.Category.CONFIGURATION: (
        "Configuration",
        "Somebody has to change something: the jobs, or the configuration.",
    ),
    reasons.Category.NOTHING_FITS: (
        "Nothing fits",
        "No drone type is good enough; the nearest, and where it fails first.",
    ),
    reasons.Category.LIMIT: (
        "Limit",
        "A limit that the operator set is reached, or idle drones refuse the jobs.",
    ),
    reasons.Category.BACK_OFF: ("Back-off", "Something failed, and is left alone until a time."),
    reasons.Category.WAITING_SITE: (
        "Waiting for the site",
        "It comes by itself, or a site has to answer first.",
    ),
    reasons.Category.WAITING_NEGOTIATION: (
        "Waiting for negotiation",
        "The pool has not looked at the jobs yet.",
    ),
    reasons.Category.START: ("Why a drone is started", ""),
    reasons.Category.LEAVE: ("Why a drone leaves", ""),
    reasons.Category.STEP: ("What became known of a drone", ""),
}


REASON_EXAMPLES: tuple[reasons.Reason, ...] = (
    r.Accepted("8812.0"),
    r.OrderRefused("quota", "AssocGrpGRES: the group has no GPU-hours left"),
    r.DrainRefused("denied", "condor_drain: exit 1: not authorized"),
    r.DrainRepeated(45.0, "order ad: the collector does not list it"),
    r.OutcomeUnknown("no answer within 60 s"),
    r.SeenAtSite("pending", "Resources"),
    r.StartLost(),
    r.SeenInPool("busy", 2, 341.0),
    r.NotInListing(),
    r.NeverArrived(134.0, 120.0),
    r.Disappeared(45.0, 30.0),
    r.EndedAtSite("exited", 71, "nvidia-smi: No devices were found", 12.0, 0),
    r.IdleTimeout(612.0, 600.0, "time-out"),
    r.OptionalJobsOnly(905.0, 600.0),
    r.DrainAtRisk("topas", 0.043, 0.02),
    r.BlackHoleDrone(4, 0, 2, "topas-a100-2", "job 204.7 held with code 12"),
    r.BlackHoleNode("topas-a100-2", 1769860800.0, 2, "kit-x7q2-31: job 204.7 held with code 12"),
    r.Unneeded("queued"),
    r.StateTimeout("booting", 640.0, 600.0),
    r.LeftPool(320.0, 300.0),
    r.ServiceRequested("cms", 95.5, 12, 4, 1, 3),
    r.ServiceAnnounced("cms", 20, 3, 2, 0, 2),
    r.ServiceMinimum("cms", 1, 0, 1),
    r.SurplusServer("cms", 4, 2),
    r.ServerYields(6, 10, 0.5),
    r.ServerEnds(1769860800.0, 2, 3),
    r.ServerReturns("cms", 2, 1),
    r.ServerDrained(),
    r.ServicesShare(5, 10, 0.5),
    r.ModelUnknown("deepmet:4"),
    r.OperatorRequested("alice", "node needs a new fan"),
    r.PreemptedForOwner(3, 95.0, "topas-a100-2", 6, 5400.0),
    r.Preempted("the owner's job took its place", 9.2, 10.0, 312.0, 1),
    r.PreemptionNotice("preempted by its site"),
    r.Requeued("preempted"),
    r.ReserveReclaimed("topas-v100s-1"),
    r.TypeRemoved("horeka/a100"),
    r.Orphan("lost"),
    r.DemandReturned("3f2a91c07be4d856", "alice: 1 GPU, 40 GiB VRAM (3f2a)", 4),
    r.JobsWaiting("3f2a91c07be4d856", "alice: 1 GPU, 40 GiB VRAM (3f2a)", 30, 6, 4),
    r.HeadroomShort("day-shift", 4, 1, 3),
    r.BadRequest("1.5 GPUs: write 1 or 2, only less than one GPU can be a share"),
    r.PlannerFailed("ZeroDivisionError: integer division or modulo by zero"),
    r.InvalidAction("41 drones at horeka, 40 allowed"),
    r.NothingFits("horeka/h100", "vram", "200000 MiB", "97792 MiB"),
    r.LimitReached("max_drones", "horeka/h100", 40, 40),
    r.GroupQuota("physics.atlas", 8, 8),
    r.PoolLimit("concurrency limit licence is used up"),
    r.ExclusiveOnly(
        2,
        604800.0,
        1769860800.0,
        "job schedd.example.org#204.17 in kit-x7q2-31: faulted on a shared GPU",
    ),
    r.OwnerRisk("topas", 3600.0, 60.0, 0.017, 120.0),
    r.ExistingDronesSuffice(12.0, 40),
    r.HeadroomYields("day-shift", 4),
    r.BackingOff("horeka", 1769860800.0, "denied", "token has expired"),
    r.StartsUnmatched(
        "horeka/a100",
        1769860800.0,
        2,
        "kit-x7q2-31 idled until it left, and no job of the class came",
    ),
    r.IdleDroneRefuses("kit-x7q2-17", "topas/a100", "excluded_users", 2, 1769860800.0),
    r.SiteFull("topas/v100", "cpus 8 > 2 of this host"),
    r.GpusStranded("cluster/h100", 63, 504, "cpus", 8, 2),
    r.SiteQuota("gridka-cloud/h100"),
    r.StartBlocked("horeka/a100", "quota", "QOSMaxJobsPerUserLimit"),
    r.Downtime("horeka", 1769860800.0, 900.0, 1800.0),
    r.CredentialUnusable("overlay", "drone_token", "drone@pool.example.org", 1769860800.0),
    r.NegotiatorSilent(960.0),
    r.OwnerWaits("topas", 3, 8),
    r.NodeReserved(
        "topas", "topas-a100-2", "b81e5d02c9a7f346", "bob: 4 GPUs (b81e)", 4, 1769860800.0, 5400.0
    ),
    r.ReserveKept("topas/cpu", 4),
    r.SiteDisabled("gridka-cloud", "alice", "cooling is repaired"),
    r.UserTurn(2, 5, 12.0, 3.0),
    r.DemandCovered(8, 3, 1, "owner-risk"),
    r.AwaitingIdleGpu("topas/cpu", "reserve-kept"),
    r.AwaitingNegotiation(25),
    r.StaleView("site:horeka", 187.0, 120.0, "no answer within 20 s"),
    r.AllVanished("topas", 56),
    r.TooManyUnhealthy(31, 120, 0.2),
    r.Probing("horeka"),
    r.NewLeader("horeka", 1769860800.0),
    r.UnknownDrone("kit-x7q2-999"),
    r.NotDraining("kit-x7q2-17", "stopping"),
    r.ShadowOnly("topas/a100", 2),
    r.OrphansKept("topas", "kit-x7q2", 6, 1769860800.0),
    r.LiveTwin("kit-x7q2", "kit-x7q2-42"),
)


REMEDIES = {
    "bad-request": "inform the user; the sentence contains the remedy.",
    "planner-failed": "report it, with the output of `provisioner snapshot`.",
    "site-disabled": "`provisioner sites enable`, or `enabled: true` in its file.",
    "nothing-fits": "change the job, or add a drone type.",
    "limit-reached": "wait, or raise the limit.",
    "group-quota": "wait, or raise the quota in the pool.",
    "pool-limit": "wait, or raise the limit in the pool.",
    "idle-drone-refuses": "wait, or `provisioner drones drain ID`. Drones refuse users who would [lose too much]"
    "(../explanation/planning.md#owner-risk) to the owner (`excluded_users`), jobs that are [too small]"
    "(../explanation/matching.md#drones-kept-for-their-jobs) (`min_gpus`), at first all but those that they were "
    "started for (`first_jobs`), and jobs that run past their end (`ends`).",
    "site-quota": "wait, or request more quota.",
    "backing-off": "look at the fault; after a repair `provisioner sites reset`.",
    "starts-unmatched": "compare the job with the slot of such a drone (`condor_q -better-analyze`), then "
    "`provisioner sites reset`.",
    "exclusive-only": "report the [faults](../explanation/sharing.md#faults-on-shared-gpus); then "
    "`provisioner sites reset user:NAME`.",
    "credential-unusable": "renew it; the next tick uses it.",
    "negotiator-silent": "repair the negotiator.",
    "too-many-unhealthy": "look at the network and the controller's host.",
    "probing": "wait for the one drone.",
    "new-leader": "wait for that time.",
    "owner-risk": "wait, add a site without an owner, or raise `policy.waiting_cost`.",
    "existing-drones-suffice": "wait, or raise `policy.waiting_cost`.",
    "headroom-yields": "wait.",
    "site-full": "wait.",
    "gpus-stranded": "configure [blocking](../how-to/headroom-and-groups.md#free-gpus-without-cores-blocking).",
    "start-blocked": "as the message of the site says.",
    "downtime": "wait.",
    "owner-waits": "wait; `provisioner sites show SITE` has the number of the owner's jobs.",
    "node-reserved": "wait; see [large jobs](../explanation/planning.md#large-jobs).",
    "reserve-kept": "wait.",
    "user-turn": "wait.",
    "demand-covered": "wait. For a drone that is [delayed](../explanation/planning.md#delayed-drones) the sentence "
    "says why no other is started.",
    "awaiting-idle-gpu": "wait, or add a CPU drone type; see [optional GPUs](../how-to/optional-gpus.md).",
    "stale-view": "wait; if it lasts, restore the access to the site or the pool.",
    "all-vanished": "wait for the next polls of the site.",
    "services-share": "wait; or raise `policy.services_share`.",
    "model-unknown": "correct `WantsInference` of the job, or add the model to a type's `server`.",
    "awaiting-negotiation": "wait a minute.",
}
"""Remedies of an operator for the reasons of waiting jobs."""


def reasons_page() -> str:
    """Return ``docs/reference/reasons.md``."""
    lines = [
        configuration_pages.NOTICE,
        "",
        "# Reasons",
        "",
        "Every action, every refusal and every step of a drone has one of these: an example of its sentence, its",
        "meaning, what to do, and in brackets its fields in JSON, where `kind` is its name. Jobs wait for a reason of",
        "the first six [categories](../explanation/loop.md#reasons); a class shows the first that applies.",
    ]
    for category, (title, words) in CATEGORY_WORDS.items():
        lines += ["", f"## {title}", ""]
        lines += [words, ""] if words else []
        for example in (e for e in REASON_EXAMPLES if e.category is category):
            lines += _reason_lines(example)
    return "\n".join(lines).rstrip() + "\n"


def _reason_lines(example: reasons.Reason) -> list[str]:
    meaning = inspect.getdoc(type(example)) or ""
    if meaning.startswith(f"{type(example).__name__}("):
        meaning = ""
    remedy = REMEDIES.get(example.kind, "")
    named = ", ".join(f"`{f.name}`" for f in fields(example) if f.name != "kind")
    parts = [
        " ".join(meaning.replace("``", "`").split()),
        f"**Do:** {remedy}" if remedy else "",
        f"({named})" if named else "",
    ]
    words = " ".join(filter(None, parts))
    return [
        f"### `{example.kind}`",
        "",
        f"> {example.describe()}",
        "",
        *([words, ""] if words else []),
    ]


# --------------------------------------------------------------------------------------------------------------
# metrics

METRICS_INTRODUCTION = """\
# Metrics

[The how-to](../how-to/monitoring.md) shows how to scrape them. A `summary` has the sum of durations (`_sum`) and their
number (`_count`). Counters count since the record was created, over restarts of all services. GPU time is in
GPU-seconds: a drone with two GPUs adds two in each second. All durations are in seconds. After a name come its kind
and its labels.
"""

METRIC_LABELS = {
    "site": "name of the site",
    "type": "name of the drone type at its site",
    "state": "state of a drone, or of a breaker; of jobs `waiting` or `running`",
    "vo": "virtual organisation of jobs, `none` or `other`; users may have written it; of services a configured one",
    "service": "name of an inference service",
    "model": "model of a service, as its servers name it",
    "scope": "`overlay`, `services` or a site; of a breaker also `SITE/TYPE`; of a credential who uses it",
    "category": "category of the weightiest [reason](reasons.md) of a job class, or `none`",
    "reason": "`kind` of a [reason](reasons.md)",
    "outcome": "final state of a drone; of a run `completed` or `unfinished`",
    "use": "`boot`, `idle`, `busy` or `draining`; `service`: a server of a service that is ready",
    "kind": "kind of a fault, or of a trouble of `provisioner status`",
    "severity": "`critical`, `warning` or `note`, as in `provisioner status`",
    "name": "option of the configuration that names a credential",
    "fault": "kind of the fault that changed the state of a breaker; may be empty",
    "grace": "`within` the grace period and the stop timeout of the site, or `over` both",
    "version": "version of the program that reads the record",
}
"""The labels of all metrics. But for `vo`, which has 21 values at a time, none has more values than the configuration
has sites and types, or the code has words."""


def alert_rules() -> list[dict[str, Any]]:
    """Return the rules of all alerts."""
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the dashboards by name."""
    files = (MONITORING / "grafana").iterdir()
    return {path.stem.partition("-")[2]: json.loads(path.read_text()) for path in sorted(files)}


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title of each panel with its expression."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):  # the heading of a row has none
            yield panel["title"], target["expr"]


def metrics_page() -> str:
    """Return ``docs/reference/metrics.md``."""
    lines = [configuration_pages.NOTICE, "", METRICS_INTRODUCTION]
    for spec in METRICS:
        parts = re.compile(rf"\b(?:{'|'.join(spec.parts)})\b")
        rules = [rule["alert"] for rule in alert_rules() if parts.search(rule["expr"])]
        alerts = ", ".join(f"[{name}](../how-to/runbooks.md#{name.lower()})" for name in rules)
        kind = ": ".join(filter(None, [spec.kind, ", ".join(spec.labels)]))
        alert = f" Alert: {alerts}." if alerts else ""
        lines.append(f"- `{spec.name}` ({kind}): {spec.help}{alert}")
    lines += ["", "## Labels", ""]
    lines += [f"- `{name}`: {words}" for name, words in METRIC_LABELS.items()]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------------------------------
# layers

ARCHITECTURE = Path(__file__).parent / "internals" / "architecture.md"
LAYERS_MARK = "<!-- Made by `python -m docs.make_reference`: layers -->"


def layers() -> list[list[str]]:
    """Return the modules of each layer, from the top, as the import contract has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["id"] == "layers")
    return [re.findall(r"[\w.]+", layer) for layer in contract["layers"]]


def layers_list() -> str:
    """Return the layers as a list, with what the docstring of each module says."""
    lines = []
    for number, modules in enumerate(layers(), 1):
        described = [f"`{name.partition('.')[2]}` ({_subject(name)})" for name in modules]
        lines.append(f"{number}. {', '.join(described)}")
    return "\n".join(lines) + "\n"


def _subject(module: str) -> str:
    doc = inspect.getdoc(import_module(module)) or ""
    first = re.split(r"[.:;] |\.?\n|\.$", doc.replace("``", "`"), maxsplit=1)[0]
    return first[0].lower() + first[1:] if first[1:2].islower() else first


def architecture_page() -> str:
    """Return ``docs/internals/architecture.md`` with the list of layers between its marks."""
    before, _, after = ARCHITECTURE.read_text(encoding="utf-8").split(LAYERS_MARK)
    return f"{before}{LAYERS_MARK}\n\n{layers_list()}\n{LAYERS_MARK}{after}"


# ----------------------------------------------------------------------------------------------------------------
# files

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "reasons.md": reasons_page,
    "cli-schemas.json": lambda: json.dumps(output_schemas(), indent=1) + "\n",
    "controller.schema.json": lambda: schema_text(controller_schema(shipped_only=True)),
    "site.schema.json": lambda: schema_text(site_schema(shipped_only=True)),
    report.SCHEMA_FILE: lambda: schema_text(report.schema()),
    "../internals/architecture.md": architecture_page,
}


def made_files() -> dict[str, str]:
    """Return the text of each file, by its name below ``docs/reference``."""
    made = {name: page() for name, page in PAGES.items()}
    return made | {
        f"configuration/{name}": text for name, text in configuration_pages.pages().items()
    }


def stale_files(directory: Path = REFERENCE) -> list[Path]:
    """Return the files that do not exist or differ from what the code makes, and those that nothing makes."""
    made = {directory / name: text for name, text in made_files().items()}
    left = set((directory / "configuration").glob("*")) - set(made)
    return sorted(left) + [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or name the stale ones. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.make_reference", description="Make the generated reference."
    )
    parser.add_argument(
        "directory", nargs="?", type=Path, default=REFERENCE, help="default: docs/reference"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; name stale files and exit with 1 if any",
    )
    given = parser.parse_args(arguments)
    if not given.directory.is_dir():
        parser.error(f"no such directory: {given.directory}")
    if given.check:
        stale = stale_files(given.directory)
        print("".join(f"{path}: stale. Run this without --check\n" for path in stale), end="")
        return 1 if stale else 0
    for name, text in made_files().items():
        path = given.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
