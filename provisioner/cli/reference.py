"""Reference pages made from the code: ``python -m provisioner.cli.reference --write docs/reference/cli.md``.

Also ``reasons.md`` and ``cli-schemas.json``, by the name of the file. Without ``--write`` the page goes to stdout.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from provisioner import formatting, reasons
from provisioner import reasons as r
from provisioner.cli.__main__ import VERBS, LazyVerbs, app
from provisioner.cli.check import PROBES_SCHEMA, PROBLEMS_SCHEMA, probe_columns, problem_columns
from provisioner.cli.drones import DRONES_SCHEMA, drone_columns, life_document
from provisioner.cli.estimates import EstimatesRow, estimates_document
from provisioner.cli.explain import KnownJob, class_document, explained_drone_document, job_document
from provisioner.cli.import_tardis import IMPORT_SCHEMA, finding_columns
from provisioner.cli.jobs import DEMAND_SCHEMA, JOBS_SCHEMA, class_columns, queue_columns
from provisioner.cli.options import EXIT_HELP, Exit, Pick, Show, VerbError, Where
from provisioner.cli.output import Column, Document, Listing, note
from provisioner.cli.plan import SNAPSHOTS_SCHEMA, plan_diff_document, plan_document, snapshot_columns
from provisioner.cli.simulate import simulation
from provisioner.cli.sites import SITES_SCHEMA, SiteRow, site_columns, site_document
from provisioner.cli.status import EVENTS_SCHEMA, event_columns, status_document
from provisioner.model import Breaker, Drone, DroneId, DroneState, JobClass, Plan, Policy, PolledOverlay, TypeKey
from provisioner.reasons import Reason
from provisioner.simulator.traces import Trace
from provisioner.store import Views

if TYPE_CHECKING:
    from provisioner.store.reader import Reader

REASON_EXAMPLES: tuple[Reason, ...] = (
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
    r.ReserveReclaimed("topas-v100s-1"),
    r.TypeRemoved("horeka/a100"),
    r.Orphan("lost"),
    r.DemandReturned("12", 4),
    r.JobsWaiting("12", 30, 6, 4),
    r.HeadroomShort("day-shift", 4, 1, 3),
    r.BadRequest("1.5 GPUs: write 1 or 2, only less than one GPU can be a share"),
    r.PlannerFailed("ZeroDivisionError: integer division or modulo by zero"),
    r.InvalidAction("41 drones at horeka, 40 allowed"),
    r.NothingFits("horeka/h100", "vram", "200000 MiB", "97792 MiB"),
    r.LimitReached("max_drones", "horeka/h100", 40, 40),
    r.GroupQuota("physics.atlas", 8, 8),
    r.PoolLimit("concurrency limit licence is used up"),
    r.OwnerRisk("topas", 3600.0, 600.0, 0.011),
    r.AwaitingCheaperType("gridka-cloud/a100", 240.0, 550.0),
    r.ExistingDronesSuffice(12.0, 40),
    r.HeadroomYields("day-shift", 4),
    r.BackingOff("horeka", 1769860800.0, "denied", "token has expired"),
    r.StartsUnmatched("horeka/a100", 1769860800.0, 2, "kit-x7q2-31 idled until it left, and no job of the class came"),
    r.SiteFull("topas/v100", "cpus 8 > 2 of this host"),
    r.GpusStranded("cluster/h100", 63, 504, "cpus", 8, 2),
    r.SiteQuota("gridka-cloud/h100"),
    r.StartBlocked("horeka/a100", "quota", "QOSMaxJobsPerUserLimit"),
    r.Downtime("horeka", 1769860800.0, 900.0, 1800.0),
    r.OwnerWaits("topas", 3, 8),
    r.ReserveKept("topas/cpu", 4),
    r.SiteDisabled("gridka-cloud"),
    r.DemandCovered(8, 3),
    r.AwaitingNegotiation(25),
    r.StaleView("site:horeka", 187.0, 120.0, "no answer within 20 s"),
    r.AllVanished("topas", 56),
    r.TooManyUnhealthy(31, 120, 0.2),
    r.Probing("horeka"),
    r.UnknownDrone("kit-x7q2-999"),
    r.NotDraining("kit-x7q2-17", "stopping"),
)


def output_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas by name (``provisioner.drones/1``)."""
    return {answer.schema: json_schema(answer) for answer in _sample_answers()}


def json_schema(answer: Listing | Document) -> dict[str, Any]:
    """Return the JSON Schema of what ``-o json`` writes for ``answer``, whatever its rows."""
    common = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": answer.schema, "type": "object"}
    version = {"schema": {"const": answer.schema}}
    if isinstance(answer, Listing):
        return common | _object(version | {"items": {"type": "array", "items": _row_schema(answer.columns)}})
    facts = _row_schema(answer.facts.columns)["properties"]
    parts = {
        key: {"type": "array" if part.unknown is None else ["array", "null"], "items": _row_schema(part.columns)}
        for key, part in answer.parts.items()
    }
    raw = {key: {"type": "object"} for key in answer.raw}
    return common | _object(version | facts | parts | raw)


def _row_schema(columns: Sequence[Column]) -> dict[str, Any]:
    cells = {}
    for column in columns:
        kind: str | list[str] = [column.kind, "null"] if column.null else column.kind
        choices = {"enum": list(column.choices)} if column.choices else {}
        cells[column.key] = {"type": kind, "description": column.doc, **choices}
    return {"type": "object"} | _object(cells)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties), "additionalProperties": False}


def _sample_answers() -> list[Listing | Document]:
    """Return each kind of answer, from a record that is nearly empty: a schema does not depend on the rows."""
    reader = cast("Reader", SampleReader())
    lists = {
        DRONES_SCHEMA: drone_columns(0.0),
        SITES_SCHEMA: site_columns(0.0),
        DEMAND_SCHEMA: class_columns(0.0),
        EVENTS_SCHEMA: event_columns(),
        SNAPSHOTS_SCHEMA: snapshot_columns(),
        PROBLEMS_SCHEMA: problem_columns(),
        PROBES_SCHEMA: probe_columns(),
        JOBS_SCHEMA: queue_columns(0.0),
        IMPORT_SCHEMA: finding_columns(),
    }
    return [
        status_document(reader, 2.0),
        life_document(_SAMPLE_DRONE, [], 2.0),
        site_document(_SAMPLE_SITE, None, (), (), 0.0, 2.0),
        class_document(reader, _SAMPLE_VIEWS, JobClass("1", 1000, 1, 1), "", 2.0),
        explained_drone_document(reader, _SAMPLE_DRONE.id, 2.0),
        job_document(KnownJob("1.0", "running", "")),
        plan_document(Plan(1, 1.0), ""),
        plan_diff_document(Plan(1, 1.0), Plan(1, 1.0), ""),
        estimates_document(EstimatesRow(None, None), 2.0),
        simulation(Trace("", ()), (), {}),
        *(Listing(schema, columns, (), str) for schema, columns in lists.items()),
    ]


_SAMPLE_DRONE = Drone(DroneId("a-b-1"), TypeKey("s/t"), DroneState.IDLE, 1.0, 1.0, 1000)
_SAMPLE_SITE = SiteRow("s", None, None, Breaker("s"), (), {}, 0)
_SAMPLE_VIEWS = Views(1, 1.0, Policy(), (), PolledOverlay(), {})


class SampleReader:
    """Reader of a record with one drone and nothing else."""

    path = None
    _ANSWERS: Mapping[str, object] = {"holder": None, "views": None, "breakers": {}, "drone": _SAMPLE_DRONE}

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *args, **named: self._ANSWERS.get(name, [])


def schema(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="controller, site, or as provisioner.drones/1.", show_default=False),
    ] = None,
) -> None:
    """Print a JSON Schema; without a name, list those there are.

    controller and site describe the configuration files, for editors and CI. The others describe what -o json writes:
    keys may be added under the same number, and are never renamed or removed without a new one.

    \b
    Examples:
      provisioner schema
      provisioner schema site > site.schema.json
      provisioner schema provisioner.drones/1
    """
    known = _known_schemas()
    if name is None:
        sys.stdout.write("".join(f"{n}\n" for n in known))
        return
    if name not in known:
        near = get_close_matches(name, known, n=1)
        instead = f"did you mean {near[0]}?" if near else "`provisioner schema` lists them"
        raise VerbError(f"no schema {name[:80]!r}; {instead}")
    sys.stdout.write(json.dumps(known[name](), indent=2) + "\n")
    note(f"JSON Schema of {name}")


def _known_schemas() -> dict[str, Callable[[], Any]]:
    from provisioner.config.reference import controller_schema, site_schema

    known: dict[str, Callable[[], Any]] = {"controller": controller_schema, "site": site_schema}
    return known | {answer.schema: partial(json_schema, answer) for answer in _sample_answers()}


PAGE_NOTICE = "<!-- Made by `python -m provisioner.cli.reference --write {}`; do not edit. -->"

SHARED_OPTIONS = {f.name: group.__name__ for group in (Where, Show, Pick) for f in fields(group)}
OPTION_GROUP_WORDS = {"Where": "where the record is", "Show": "form of the output", "Pick": "rows of a list"}


def cli_page() -> str:
    """Return ``docs/reference/cli.md``."""
    root = typer.main.get_command(app)
    assert isinstance(root, LazyVerbs)
    context = typer.Context(root, info_name="provisioner")
    lines = [
        PAGE_NOTICE.format("docs/reference/cli.md"),
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
        shown += [_row(p, context) for p in command.params if SHARED_OPTIONS.get(p.name) == group]
        shown.append("")
    return shown[:-1]


def _verb(path: str, command: Any, context: Any, level: str) -> list[str]:
    """Return the section of a verb and of those below it."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    own = [p for p in command.params if p.param_type_name == "option" and p.name not in (*SHARED_OPTIONS, "help")]
    groups = [w for g, w in OPTION_GROUP_WORDS.items() if any(SHARED_OPTIONS.get(p.name) == g for p in command.params)]
    lines = [f"{level} `{path}`", "", *_prose(command.help or ""), ""]
    if arguments:
        lines += ["| argument | means |", "|---|---|"]
        lines += [_row(p, context) for p in arguments]
        lines.append("")
    if own:
        lines += ["| option | means |", "|---|---|", *(_row(p, context) for p in own), ""]
    if groups:
        lines += [f"Shared options: {'; '.join(groups)}.", ""]
    for name, below in getattr(command, "commands", {}).items():
        lines += _verb(f"{path} {name}", below, context, level + "#")
    return lines


def _row(parameter: Any, context: Any) -> str:
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
            lines += ["```console", *(f"$ {line.strip()}" for line in paragraph.splitlines()[2:]), "```"]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines


# -------------------------------------------------------------------------------------------------------------- reasons

CATEGORY_WORDS = {
    formatting.Category.CONFIGURATION: (
        "Configuration",
        "Somebody has to change something: the jobs, or the configuration.",
    ),
    formatting.Category.NOTHING_FITS: (
        "Nothing fits",
        "No drone type is good enough; the nearest, and where it fails first.",
    ),
    formatting.Category.LIMIT: ("Limit", "A limit that the operator set is reached."),
    formatting.Category.BACK_OFF: ("Back-off", "Something failed, and is left alone until a time."),
    formatting.Category.WAITING_SITE: ("Waiting for the site", "It comes by itself, or a site has to answer first."),
    formatting.Category.WAITING_NEGOTIATION: ("Waiting for negotiation", "The pool has not looked at the jobs yet."),
    formatting.Category.START: ("Why a drone is started", ""),
    formatting.Category.LEAVE: ("Why a drone leaves", ""),
    formatting.Category.STEP: ("What became known of a drone", ""),
}


def reasons_page() -> str:
    """Return ``docs/reference/reasons.md``."""
    lines = [
        PAGE_NOTICE.format("docs/reference/reasons.md"),
        "",
        "# Reasons",
        "",
        "Every action, every refusal and every step of a drone has one of these. `kind` is its stable name in JSON, in",
        "the record; the fields are its numbers. What the tiers are for:",
        "[Reasons](../explanation/loop.md#reasons).",
    ]
    for category, (title, words) in CATEGORY_WORDS.items():
        lines += ["", f"## {title}", ""]
        lines += [words, ""] if words else []
        for example in (e for e in REASON_EXAMPLES if formatting.category(e) is category):
            lines += _reason_lines(example)
    return "\n".join(lines).rstrip() + "\n"


_TYPE_WORDS = {"str": "text", "int": "integer", "float": "number", "int | None": "integer or null"}


def _reason_lines(example: reasons.Reason) -> list[str]:
    meaning = inspect.getdoc(type(example)) or ""
    has_meaning = meaning and not meaning.startswith(f"{type(example).__name__}(")
    named = ", ".join(f"`{f.name}` ({_TYPE_WORDS[str(f.type)]})" for f in fields(example) if f.name != "kind")
    return [
        f"### `{example.kind}`",
        "",
        *([" ".join(meaning.split()), ""] if has_meaning else []),
        *([f"Fields: {named}.", ""] if named else []),
        f"> {formatting.describe(example)}",
        "",
    ]


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "reasons.md": reasons_page,
    "cli-schemas.json": lambda: json.dumps(output_schemas(), indent=1) + "\n",
}


def main(argv: Sequence[str]) -> int:
    """Write the pages that are named, or print one."""
    names = [Path(a) for a in argv if a != "--write"]
    unknown = [n for n in names if n.name not in PAGES]
    if not names or unknown:
        print(f"name pages to make: {', '.join(PAGES)}", file=sys.stderr)
        return Exit.USAGE
    for name in names:
        if "--write" in argv:
            name.write_text(PAGES[name.name](), encoding="utf-8")
        else:
            sys.stdout.write(PAGES[name.name]())
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
