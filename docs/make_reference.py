"""Write the reference pages and JSON Schemas that are made from the code: ``python -m docs.make_reference``."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from provisioner import loader, reasons, reasons as r
from provisioner.answers.errors import Exit
from provisioner.answers.query import ListQuery, Query, parameters
from provisioner.answers.schemas import output_schemas
from provisioner.cli.__main__ import VERBS, LazyVerbs, app
from provisioner.cli.options import EXIT_HELP, Screen, Where
from provisioner.config.messages import fields_of, flow, is_model, union_members
from provisioner.config.models import ControllerFile, SiteFile
from provisioner.config.schema import adapter_configs, controller_schema, schema_text, site_schema
from provisioner.config.units import Secret, Unit
from provisioner.monitoring import metrics
from provisioner.monitoring.metrics import METRICS
from provisioner.simulator import report

REFERENCE = Path(__file__).parent / "reference"
MONITORING = Path(metrics.__file__).parent
PAGE_NOTICE = "<!-- Made by `python -m docs.make_reference`; do not edit. -->"

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
    "Where": "where the record is",
    "Show": "form of the output",
    "Pick": "rows of a list",
}


def cli_page() -> str:
    """Return ``docs/reference/cli.md``."""
    root = typer.main.get_command(app)
    assert isinstance(root, LazyVerbs)
    context = typer.Context(root, info_name="provisioner")
    lines = [
        PAGE_NOTICE,
        "",
        "# The command line",
        "",
        *_prose(root.help or ""),
        "",
        "## Exit codes",
        "",
        "| code | means |",
        "|---|---|",
        *_exit_rows(),
        "",
        "## Options that many verbs share",
        "",
        *_shared_options(root, context),
        "",
    ]
    for verb in VERBS:
        command = root.get_command(context, verb)
        if command is not None:
            lines += _verb(f"provisioner {verb}", command, context, "##")
    return "\n".join(lines).rstrip() + "\n"


def _exit_rows() -> Iterator[str]:
    parts = EXIT_HELP.removeprefix("Exit codes: ").rstrip(".").split(";")
    meanings = dict(part.strip().split(" ", 1) for part in parts)
    for code in Exit:
        yield f"| {code.value} | {meanings[str(code.value)]} |"


def _shared_options(root: LazyVerbs, context: Any) -> list[str]:
    command = root.get_command(context, "drones")
    shown = []
    for group, title in OPTION_GROUP_WORDS.items():
        shown += [f"**{title[0].upper()}{title[1:]}**", "", "| option | means |", "|---|---|"]
        shown += [
            _parameter_row(p, context)
            for p in command.params
            if SHARED_OPTIONS.get(p.name) == group
        ]
        shown.append("")
    return shown[:-1]


def _verb(path: str, command: Any, context: Any, level: str) -> list[str]:
    """Return the section of a verb and of those below it."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    own = [
        p
        for p in command.params
        if p.param_type_name == "option" and p.name not in (*SHARED_OPTIONS, "help")
    ]
    groups = [
        w
        for g, w in OPTION_GROUP_WORDS.items()
        if any(SHARED_OPTIONS.get(p.name) == g for p in command.params)
    ]
    lines = [f"{level} `{path}`", "", *_prose(command.help or ""), ""]
    if arguments:
        lines += ["| argument | means |", "|---|---|"]
        lines += [_parameter_row(p, context) for p in arguments]
        lines.append("")
    if own:
        lines += ["| option | means |", "|---|---|", *(_parameter_row(p, context) for p in own), ""]
    if groups:
        lines += [f"Shared options: {'; '.join(groups)}.", ""]
    for name, below in getattr(command, "commands", {}).items():
        lines += _verb(f"{path} {name}", below, context, level + "#")
    return lines


def _parameter_row(parameter: Any, context: Any) -> str:
    """Return an option or argument as its help shows it."""
    name, meaning = parameter.get_help_record(context) or ("", "")
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name) + (" ..." if parameter.nargs == -1 else "")
        meaning = meaning.removesuffix("[required]").rstrip()
    return f"| `{_cell(name)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


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
    r.UnknownDrone("kit-x7q2-999"),
    r.NotDraining("kit-x7q2-17", "stopping"),
    r.ShadowOnly("topas/a100", 2),
    r.OrphansKept("topas", "kit-x7q2", 6, 1769860800.0),
    r.LiveTwin("kit-x7q2", "kit-x7q2-42"),
)


def reasons_page() -> str:
    """Return ``docs/reference/reasons.md``."""
    lines = [
        PAGE_NOTICE,
        "",
        "# Reasons",
        "",
        "Every action, every refusal and every step of a drone has one of these. `kind` is its stable name in JSON, in",
        "the record; the fields are its numbers. The loop page explains the categories:",
        "[Reasons](../explanation/loop.md#reasons).",
    ]
    for category, (title, words) in CATEGORY_WORDS.items():
        lines += ["", f"## {title}", ""]
        lines += [words, ""] if words else []
        for example in (e for e in REASON_EXAMPLES if e.category is category):
            lines += _reason_lines(example)
    return "\n".join(lines).rstrip() + "\n"


_TYPE_WORDS = {
    "bool": "boolean",
    "str": "text",
    "int": "integer",
    "float": "number",
    "int | None": "integer or null",
}


def _reason_lines(example: reasons.Reason) -> list[str]:
    meaning = inspect.getdoc(type(example)) or ""
    has_meaning = meaning and not meaning.startswith(f"{type(example).__name__}(")
    named = ", ".join(
        f"`{f.name}` ({_TYPE_WORDS[str(f.type)]})" for f in fields(example) if f.name != "kind"
    )
    return [
        f"### `{example.kind}`",
        "",
        *([" ".join(meaning.split()), ""] if has_meaning else []),
        *([f"Fields: {named}.", ""] if named else []),
        f"> {example.describe()}",
        "",
    ]


# --------------------------------------------------------------------------------------------------------
# configuration

INTRODUCTION = """\
<!-- Made by `python -m docs.make_reference`; do not edit. -->

# Configuration

There is one controller file, and one file for each site that it lists under `sites`. `provisioner check FILE` reports
every mistake in all of them at once, as `file:line:col: what is wrong: what to write instead`; it accepts a single site
file too. Editors that support JSON Schema can use [controller.schema.json](controller.schema.json) and
[site.schema.json](site.schema.json). Commented examples are in `site_configs/`.

## Values

| Value | Write | Not |
|---|---|---|
| size | `512 MiB`, `20 GiB`, `20 GB`, also B, kB, MB, TB, KiB, TiB; rounded up to whole MiB | `20`, `20G` |
| duration | `30s`, `10min`, `2h30m`, `1d`, `250ms`, also w and m; the largest unit first | `30`, `12:30` |
| GPUs | `1`, `4`, `0.5` (steps of 0.001) | `0.3333` |
| number | `8.0` | `"8.0.1"`, `.5`, `1_000`, `.inf` |
| version in quotes | `"12.4"` | `12.4` |
| name | lower-case letters, digits, `-` inside, at most 63 characters | `My_Site` |
| boolean | `true`, `false` | `yes`, `no`, `on`, `off` |
| path | `/var/lib/x`, `~/x`, or relative to the directory of the file that contains it | |
| secret by reference | `{file: /run/token}` or `{env: POOL_TOKEN}`; read at each use | the secret itself |

YAML is read strictly: no duplicate or unknown keys, no empty values, no octal or base-60 numbers, no dates. Anchors,
aliases and `<<` are supported. The options of each adapter are described at the end.
"""


def configuration_page() -> str:
    """Return ``docs/reference/configuration.md``, with the adapters of this distribution."""
    parts = [INTRODUCTION, "## Controller file\n", *_sections(ControllerFile, "")]
    parts += ["## Site file\n", *_sections(SiteFile, "")]
    for kind, group in (("Overlay", loader.OVERLAYS), ("Site", loader.SITES)):
        for name, config in adapter_configs(group, shipped_only=True).items():
            parts += [f"## {kind} adapter `{name}`: `options`\n", *_sections(config, "options")]
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str) -> Iterator[str]:
    """Yield a table of the model's own keys, then one for each mapping below it."""
    if path not in ("", "options"):
        yield f"### `{path}`\n"
    doc = (model.__doc__ or "").strip().partition("\n\n")[0].replace("``", "`")
    if doc:
        yield f"{' '.join(doc.split())}\n"
    rows = [_row(key, field) for key, field in fields_of(model).items()]
    yield (
        "\n".join(["| Key | Value | Default | Meaning | Example |", "|---|---|---|---|---|", *rows])
        + "\n"
    )
    for key, field in fields_of(model).items():
        for below, suffix in _models_below(field.annotation):
            yield from _sections(below, f"{path}.{key}{suffix}".lstrip("."))


def _models_below(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    for member in union_members(annotation):
        origin = get_origin(member)
        if is_model(member) and member is not Secret:
            yield member, ""
        elif origin in (dict, list, tuple):
            mark = ".NAME" if origin is dict else "[]"
            for model, suffix in _models_below(get_args(member)[1 if origin is dict else 0]):
                yield model, mark + suffix


def _row(key: str, field: FieldInfo) -> str:
    cells = (
        f"`{key}`",
        in_words(field.annotation, field.metadata),
        _default(field),
        " ".join((field.description or "").split()),
        _example(key, field),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _is_subclass(annotation: Any, of: type) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, of)


def unit_of(annotation: Any, metadata: Sequence[Any] = ()) -> Unit | None:
    """Return the unit of a type; None for a type without one."""
    for mark in metadata:
        if isinstance(mark, Unit):
            return mark
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return unit_of(inner, marks)
    if get_origin(annotation) in (Union, types.UnionType):
        return next((unit for member in get_args(annotation) if (unit := unit_of(member))), None)
    return None


WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    Path: "path",
    Secret: "secret by reference",
}


def in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return what to write for a value of this type, in words."""
    unit = unit_of(annotation, metadata)
    if unit is not None:
        return unit.name
    return " or ".join(
        dict.fromkeys(_member_in_words(member) for member in union_members(annotation))
    )


def _member_in_words(member: Any) -> str:
    origin = get_origin(member)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(member))
    if _is_subclass(origin, Mapping):
        return _container_in_words("mapping", get_args(member)[1])
    if _is_subclass(origin, Sequence):
        return _container_in_words("list", get_args(member)[0])
    if _is_subclass(member, Enum):
        return ", ".join(f"`{each.value}`" for each in member)
    return WORDS.get(member, "mapping" if is_model(member) else "value")


def _container_in_words(container: str, inner: Any) -> str:
    if inner is Any:
        return container
    words = in_words(inner)
    return f"{container} of {'mappings' if words == 'mapping' else words}"


_EXAMPLES = {
    "size": "20 GiB",
    "duration": "10min",
    "path": "/var/lib/provisioner",
    "secret by reference": "{file: /etc/provisioner/token}",
    "whole number": "1",
    "text": '"..."',
    "mapping of text": '{NAME: "..."}',
}


def _example(key: str, field: FieldInfo) -> str:
    """Return the field's own example; without one, the default, or a typical value of its type."""
    if field.examples:
        return f"`{key}: {flow(field.examples[0])}`"
    text = _default(field).strip("`") if not field.is_required() else ""
    text = text or _EXAMPLES.get(in_words(field.annotation, field.metadata), "")
    return f"`{key}: {text}`" if text else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel) or value in (PydanticUndefined, None, "", (), [], {}):
        return ""
    unit = unit_of(field.annotation, field.metadata)
    if unit is None:
        return f"`{flow(getattr(value, 'value', value))}`"
    return f"`{unit.format(value)}`" if value or unit.name in ("duration", "GPUs") else ""


# --------------------------------------------------------------------------------------------------------------
# metrics

METRICS_INTRODUCTION = """\
# Metrics

[The how-to](../how-to/monitoring.md) shows how to scrape them. A `summary` has the sum of durations (`_sum`) and their
number (`_count`). Counters count since the record was created, over restarts of all services. GPU time is in
GPU-seconds: a drone with two GPUs adds two in each second. All durations are in seconds.
"""

METRIC_LABELS = {
    "site": "name of the site",
    "type": "name of the drone type at its site",
    "state": "state of a drone, or of a breaker; of jobs `waiting` or `running`",
    "vo": "virtual organisation of jobs, `none` or `other`; users may have written it",
    "scope": "`overlay` or a site; of a breaker also `SITE/TYPE`; of a credential `overlay`, `site:NAME` or `web`",
    "category": "category of the weightiest [reason](reasons.md) of a job class, or `none`",
    "reason": "`kind` of a [reason](reasons.md)",
    "outcome": "final state of a drone; of a run `completed` or `unfinished`",
    "use": "`boot`, `idle`, `busy` or `draining`",
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
    lines = [
        PAGE_NOTICE,
        "",
        METRICS_INTRODUCTION,
        "| metric | kind | labels | meaning | shown in | alerts |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for spec in METRICS:
        parts = re.compile(rf"\b(?:{'|'.join(spec.parts)})\b")
        shown = [
            name
            for name, board in dashboards().items()
            if any(parts.search(query) for _, query in queries(board))
        ]
        rules = [rule["alert"] for rule in alert_rules() if parts.search(rule["expr"])]
        named = [f"[{name}](../how-to/runbooks.md#{name.lower()})" for name in rules]
        cells = (
            f"`{spec.name}`",
            spec.kind,
            ", ".join(spec.labels),
            spec.help,
            ", ".join(shown),
            ", ".join(named),
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "## Labels", "", "| label | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {words} |" for name, words in METRIC_LABELS.items()]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------------------------------
# files

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "metrics.md": metrics_page,
    "reasons.md": reasons_page,
    "configuration.md": configuration_page,
    "cli-schemas.json": lambda: json.dumps(output_schemas(), indent=1) + "\n",
    "controller.schema.json": lambda: schema_text(controller_schema(shipped_only=True)),
    "site.schema.json": lambda: schema_text(site_schema(shipped_only=True)),
    report.SCHEMA_FILE: lambda: schema_text(report.schema()),
}


def stale_files(directory: Path = REFERENCE) -> list[Path]:
    """Return the files that do not exist or differ from what the code makes."""
    made = {directory / name: page() for name, page in PAGES.items()}
    return [
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
    for name, page in PAGES.items():
        (given.directory / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
