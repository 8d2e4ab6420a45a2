"""``provisioner check``: every mistake in the configuration at once; ``--live`` also looks at sites and the pool."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import say
from provisioner.cli.cells import text, whole, words
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.listing import Column, Listing
from provisioner.cli.options import Format, Show, Where, shared
from provisioner.cli.output import note, present
from provisioner.cli.where import config_path

if TYPE_CHECKING:
    from provisioner.config import Problem, Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.problems/1"
LIVE_SCHEMA = "provisioner.looks/1"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a site or the overlay gave."""

    view: str
    ok: bool
    text: str


@app.command()
@shared
def check(
    where: Where,
    show: Show,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="Configuration file; default as --config.",
                                    show_default=False)
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also connect to each site and the overlay and look once; starts nothing.")
    ] = False,
) -> None:  # fmt: skip
    """Check the configuration and its site files.

    Each mistake is a line file:line:col with the repair, all of them at once; exit 3 if there are any.

    \b
    Examples:
      provisioner check
      provisioner check /etc/provisioner/provisioner.yaml --live
      provisioner check -o json | jq -r '.items[] | "\\(.file):\\(.line) \\(.message)"'
    """
    from provisioner.config import check as problems_of

    target = path or config_path(where)
    if not target.exists():
        raise Failure(f"no configuration at {target}")
    problems = list(problems_of(target))
    if show.output.for_people:
        sys.stdout.write("".join(f"{say.clean(str(p))}\n" for p in problems))
        sys.stdout.flush()
    elif problems or not live:
        present(show, lambda: Listing(SCHEMA, columns(), problems, str))
    if problems:
        raise Failure(f"{target}: {say.count(len(problems), 'problem')}", code=Exit.UNMET)
    note(f"{target}: no problem")
    if live:
        _check_live(target, show)


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
        text("view", lambda x: x.view, "overlay, or site:<name>.", level=0),
        Column[Look]("ok", lambda x: x.ok, "Did it succeed?", kind="boolean", level=0,
                     tint=lambda x: "green" if x.ok else "red"),
        words("text", lambda x: x.text, "What was seen, or what went wrong.", level=0, head="SEEN", least=30),
    )  # fmt: skip


def _check_live(path: Path, show: Show) -> None:
    from provisioner.config import load

    settings = load(path)
    looks = asyncio.run(_looks(settings))
    once = Show(output=Format(show.output), columns=show.columns, no_header=show.no_header, no_color=show.no_color)
    present(once, lambda: Listing(LIVE_SCHEMA, look_columns(), looks, lambda x: x.view))
    failed = [x.view for x in looks if not x.ok]
    if failed:
        raise Failure(f"{len(failed)} of {len(looks)} looks failed: {', '.join(failed)}", code=Exit.UNMET)


async def _looks(settings: Settings) -> list[Look]:
    """One look at the overlay and at each site, all at the same time, each with its own deadline."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_look_at_overlay(settings))]
        tasks += [group.create_task(_look_at_site(settings, i)) for i in range(len(settings.sites))]
    return [task.result() for task in tasks]


async def _look_at_overlay(settings: Settings) -> Look:
    from provisioner import loader

    try:
        async with asyncio.timeout(settings.policy.overlay_max_age_s / 2):
            made = loader.overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
            async with made as overlay:
                view = await overlay.look(settings.types)
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        return Look("overlay", False, _said(error))
    idle = sum(c.waiting + c.fresh for c in view.classes)
    counts = f"{say.count(len(view.classes), 'class', 'classes')}, {say.count(idle, 'idle job')}, "
    return Look("overlay", True, "; ".join([counts + say.count(len(view.slots), "slot"), *view.notices[:3]]))


async def _look_at_site(settings: Settings, index: int) -> Look:
    from provisioner import loader

    spec = settings.sites[index]
    name = f"site:{spec.name}"
    try:
        async with asyncio.timeout(spec.policy.look_deadline_s + 10.0):
            made = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, settings.controller)
            async with made as site:
                view = await site.look()
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        return Look(name, False, _said(error))
    free = "" if view.free is None else "; free: " + (", ".join(f"{n} {t}" for t, n in view.free.items()) or "nothing")
    return Look(name, True, "; ".join([say.count(len(view.drones), "drone") + free, *view.notices[:3]]))


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
