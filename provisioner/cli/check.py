"""``provisioner check``: every mistake in the configuration at once; ``--live`` also looks at sites and the pool, and
compares what a site enforces with what the policy says."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli.cells import text, whole, words
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.hostlist import folded
from provisioner.cli.listing import Column, Listing
from provisioner.cli.options import ConfigArgument, Format, Show, Where, shared
from provisioner.cli.output import note, present
from provisioner.cli.site_rows import gpu_count, owner_words
from provisioner.cli.where import config_path

if TYPE_CHECKING:
    from provisioner.config import Problem, Settings, SiteConfig
    from provisioner.interfaces import AuditFinding
    from provisioner.model import OverlayView, SiteView

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.problems/1"
LIVE_SCHEMA = "provisioner.looks/1"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a site or the overlay gave; or, with ``dimension``, a gap between the policy and what is so."""

    view: str
    ok: bool
    text: str
    dimension: str = ""
    nodes: tuple[str, ...] = ()
    """Of a gap: all nodes that have it."""


@app.command()
@shared
def check(
    where: Where,
    show: Show,
    path: ConfigArgument = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Also connect to each site and the overlay, look once, and compare what a "
            "site enforces with the policy; starts and changes nothing.",
        ),
    ] = False,
) -> None:
    """Check the configuration and its site files.

    Each mistake is a line file:line:col with the repair, all of them at once; exit 3 if there are any. What is
    valid but hardly meant is a warning, and no mistake. Drones on record count: a change that leaves them without a
    controller is a mistake, one that drains them a warning. With --live also if a look fails, or where the running
    configuration of a site does not do what the policy says (blocking, the owner's priority, grace): each such gap is
    a line with nodes and dimension.

    \b
    Examples:
      provisioner check
      provisioner check /etc/provisioner/provisioner.yaml --live
      provisioner check --live -o json | jq '.items[] | select(.dimension != null) | {view, nodes, text}'
      provisioner check -o json | jq -r '.items[] | "\\(.file):\\(.line) \\(.message)"'
    """
    from provisioner.config import check as problems_of
    from provisioner.config import warnings as warnings_in

    target = path or config_path(where)
    if not target.exists():
        raise Failure(f"no configuration at {target}")
    problems, found_odd = list(problems_of(target)), list(warnings_in(target))
    if (settings := _settings(target)) is not None:
        from provisioner.cli.check_record import against_record

        lost, drained = against_record(settings, where.store or settings.store.path)
        problems, found_odd = [*problems, *lost], [*found_odd, *drained]
    if show.output.for_people:
        sys.stdout.write("".join(f"{formatting.sanitize(str(p))}\n" for p in problems))
        sys.stdout.flush()
    elif problems or not live:
        present(show, lambda: Listing(SCHEMA, columns(), problems, str))
    if problems:
        raise Failure(f"{target}: {formatting.count(len(problems), 'problem')}", code=Exit.UNMET)
    for warning in found_odd:
        note(formatting.sanitize(str(warning)))
    note(f"{target}: no problem")
    if live:
        _check_live(target, show)


def _settings(path: Path) -> Settings | None:
    """Return the configuration at ``path``; None for a site file alone."""
    from provisioner.config import ConfigError, load

    try:
        return load(path)
    except ConfigError:
        return None


def columns() -> tuple[Column[Problem], ...]:
    """Of mistakes in a configuration."""
    return (
        text("file", lambda p: p.file, "File.", level=0),
        whole("line", lambda p: p.line, "Line, from 1.", level=0),
        whole("col", lambda p: p.col, "Column, from 1.", level=0),
        words("message", lambda p: p.message, "What is wrong, and the repair.", level=0, least=20),
    )


def look_columns() -> tuple[Column[Look], ...]:
    """Of live looks."""
    return (
        text("view", lambda x: x.view, "overlay, site:<name>, or store.", level=0),
        Column[Look](
            "ok",
            lambda x: x.ok,
            "Did it succeed? A gap is never ok.",
            kind="boolean",
            level=0,
            tint=lambda x: "green" if x.ok else "red",
        ),
        Column[Look](
            "nodes",
            lambda x: list(x.nodes),
            "Of a gap: the nodes that have it.",
            kind="array",
            level=0,
            least=12,
            wrap=True,
            spare=1,
            show=lambda x: folded(x.nodes),
        ),
        Column[Look](
            "dimension",
            lambda x: x.dimension or None,
            "Of a gap: what is not as the policy says (cpus, "
            "memory, disk, preemption, grace, ...); null: this is no gap but a look.",
            null=True,
            level=0,
            head="GAP",
            spare=1,
        ),
        words(
            "text",
            lambda x: x.text,
            "What was seen, or what went wrong; of a gap, what is so, what was wanted, and the repair.",
            level=0,
            head="SEEN",
            least=30,
        ),
    )


def _check_live(path: Path, show: Show) -> None:
    from provisioner.config import load

    settings = load(path)
    looks = asyncio.run(_looks(settings))
    once = Show(output=Format(show.output), columns=show.columns, no_header=show.no_header, no_color=show.no_color)
    present(once, lambda: Listing(LIVE_SCHEMA, look_columns(), looks, lambda x: x.view))
    failed = [x.view for x in looks if not x.ok and not x.dimension]
    gaps = [x.view for x in looks if x.dimension]
    wrong = [f"{len(failed)} of {len(looks) - len(gaps)} looks failed: {', '.join(failed)}"] if failed else []
    if gaps:
        wrong.append(f"{formatting.count(len(gaps), 'gap')} between policy and site: {', '.join(dict.fromkeys(gaps))}")
    if wrong:
        raise Failure(*wrong, code=Exit.UNMET)


async def _looks(settings: Settings) -> list[Look]:
    """One look at the overlay and at each site, all at the same time, each with its own deadline; gaps after looks."""
    async with asyncio.TaskGroup() as group:
        overlay = group.create_task(_look_at_overlay(settings))
        sites = [group.create_task(_look_at_site(settings, spec)) for spec in settings.sites]
    looks = [*overlay.result(), *(poll for site in sites for poll in site.result())]
    return [*looks, *await asyncio.to_thread(_look_at_store, settings.store.path)]


def _look_at_store(path: Path) -> list[Look]:
    """Return a gap if no controller of this user could write the record at ``path``."""
    above = path.parent
    while not above.exists() and above != above.parent:
        above = above.parent
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
        if not path.exists() or os.access(path, os.W_OK):
            return []
        why = f"{path}: {os.strerror(errno.EACCES)}"
    except OSError as error:
        why = f"{above}: {error.strerror}"
    repair = "Make the directory and the file writable for the account of the controller"
    return [Look("store", False, f"the record cannot be written: {why}. {repair}", "directory")]


async def _look_at_overlay(settings: Settings) -> list[Look]:
    """Look once and, where the adapter can tell, find out what would fail later."""
    from provisioner import loader
    from provisioner.interfaces import SupportsProbe

    here = any(getattr(loader.site_adapter(spec.adapter), "on_this_host", False) for spec in settings.sites)
    within_s = settings.policy.overlay_max_age_s / 2
    looks: list[Look] = []
    try:
        async with asyncio.timeout(2 * within_s):
            made = loader.overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
            async with made as overlay:
                async with asyncio.timeout(within_s):
                    looks.append(Look("overlay", True, _pool_seen(await overlay.poll(settings.types))))
                if isinstance(overlay, SupportsProbe):
                    async with asyncio.timeout(within_s):
                        looks += _gaps("overlay", await overlay.probe(here=here))
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        looks.append(Look("overlay", False, ("probe: " if looks else "") + _said(error)))
    return looks


def _pool_seen(view: OverlayView) -> str:
    idle = sum(c.waiting + c.fresh for c in view.classes)
    counts = f"{formatting.count(len(view.classes), 'class', 'classes')}, {formatting.count(idle, 'idle job')}, "
    return "; ".join([counts + formatting.count(len(view.slots), "slot"), *(*view.notices, *view.remarks)[:3]])


async def _look_at_site(settings: Settings, spec: SiteConfig) -> list[Look]:
    """The look and, where the adapter can tell, the gaps between the policy and what the site enforces."""
    from provisioner import loader
    from provisioner.interfaces import SupportsAudit

    name = f"site:{spec.name}"
    within_s = spec.policy.poll_deadline_s + 10.0
    looks: list[Look] = []
    try:
        async with asyncio.timeout(2 * within_s):
            made = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, settings.controller)
            async with made as site:
                async with asyncio.timeout(within_s):
                    view = await site.poll()
                looks.append(Look(name, True, _seen(view)))
                looks += [
                    Look(name, False, f"{spec.name}/{kind} can never start there: {lack}. Change the type", "fit")
                    for kind, lack in view.unfit.items()
                ]
                if isinstance(site, SupportsAudit):
                    async with asyncio.timeout(within_s):
                        looks += _gaps(name, await site.audit(spec.policy))
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        looks.append(Look(name, False, ("audit: " if looks else "") + _said(error)))
    return looks


def _seen(view: SiteView) -> str:
    """What one look at a site showed, in words."""
    parts = [formatting.count(len(view.drones), "drone")]
    if view.nodes:
        free, total = (sum(milli) for milli in zip(*((n.free_gpu_milli, n.gpu_milli) for n in view.nodes), strict=True))
        parts.append(
            f"{formatting.count(len(view.nodes), 'node')} with {formatting.gpus(free)} of {gpu_count(total)} free"
        )
    if view.free is not None:
        parts.append("free: " + (", ".join(f"{n} {t}" for t, n in view.free.items()) or "nothing"))
    owner = owner_words(view)
    return "; ".join([*parts, *([f"the owner: {owner}"] if owner else []), *(*view.notices, *view.remarks)[:3]])


def _gaps(name: str, gaps: Sequence[AuditFinding]) -> list[Look]:
    """Gaps as rows: what is the same on many nodes is told once."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        nodes.setdefault((gap.dimension or "other", gap.message), []).append(gap.node)
    return [
        Look(name, False, message, dimension, tuple(sorted({node for node in where if node})))
        for (dimension, message), where in nodes.items()
    ]


def _said(error: Exception) -> str:
    """The four errors of adapters are written for people; of any other the class tells most."""
    from provisioner.interfaces import AdapterError

    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, AdapterError) and str(error):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
