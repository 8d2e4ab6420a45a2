"""``provisioner check`` and ``render``: mistakes in the configuration, gaps at sites, configuration for sites."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli.drones import controller_of
from provisioner.cli.options import (
    ConfigArgument,
    ConfigPath,
    Exit,
    Show,
    VerbError,
    Where,
    config_path,
    shared,
)
from provisioner.cli.output import Column, Listing, flag, items, note, present, text, whole, words
from provisioner.cli.sites import gpu_count, owner_words
from provisioner.config import Problem, Settings
from provisioner.config import strict_yaml as yaml
from provisioner.model import Drone
from provisioner.store import StoreError

if TYPE_CHECKING:
    from provisioner.config import SiteConfig
    from provisioner.interfaces import AuditFinding
    from provisioner.model import OverlayView, SiteView


def against_record(settings: Settings, path: Path) -> tuple[list[Problem], list[Problem]]:
    """Return what leaves live drones on record at ``path`` without a controller, and, as warnings, what drains them.

    Without a record there is nothing to compare. A record that cannot be read is a warning.
    """
    try:
        if not path.is_file():
            return [], []
        from provisioner.store.reader import Reader

        live = Reader(path).drones()
    except (OSError, StoreError) as error:
        why = formatting.sanitize(str(error), formatting.SHORT_TEXT)
        message = f"warning: not compared with the drones on record: {why}"
        return [], [_problem_at(settings.path, ("store", "path"), message)]
    return _without_controller(settings, live), _without_type(settings, live)


def _without_controller(settings: Settings, live: list[Drone]) -> list[Problem]:
    known = {site.name for site in settings.sites}
    others = Counter(name for d in live if (name := controller_of(d.id)) != settings.controller)
    lost = Counter(d.site for d in live if d.site not in known)
    problems = []
    for name, count in sorted(others.items()):
        message = (
            f"`{settings.controller}`: {formatting.count(count, 'live drone')} on record would be left without a "
            f"controller: the name is in their ids. Keep `{name}`, or drain them first"
        )
        problems.append(_problem_at(settings.path, ("controller",), message))
    for name, count in sorted(lost.items()):
        message = (
            f"`sites`: site `{name}` was removed, and {formatting.count(count, 'live drone')} would be left without a "
            "controller. Put it back with `enabled: false`, drain them, then remove it"
        )
        problems.append(_problem_at(settings.path, ("sites",), message))
    return problems


def _without_type(settings: Settings, live: list[Drone]) -> list[Problem]:
    files = {site.name: site.path for site in settings.sites}
    known = {str(t.key) for t in settings.types}
    ends = Counter((d.site, str(d.type)) for d in live if d.site in files and str(d.type) not in known)
    problems = []
    for (site, kind), count in sorted(ends.items()):
        name, drones = kind.partition("/")[2], formatting.count(count, "live drone")
        message = f"warning: type `{name}` was removed or renamed: its {drones} will be drained"
        problems.append(_problem_at(files[site], ("types",), message))
    return problems


def _problem_at(path: Path, at: tuple[str, ...], message: str) -> Problem:
    document = yaml.read(path)
    spot = document.value_position(at) if at == ("controller",) else document.key_position(at)
    return Problem(str(path), spot.line, spot.col, message)


PROBLEMS_SCHEMA = "provisioner.problems/1"
PROBES_SCHEMA = "provisioner.looks/1"


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of polling a site or the overlay once; with ``dimension`` a gap between policy and site."""

    view: str
    ok: bool
    text: str
    dimension: str = ""
    nodes: tuple[str, ...] = ()
    """All nodes that have the gap."""


_LIVE_HELP = (
    "Also connect to each site and the overlay, look once, and compare what a site enforces with the policy; starts "
    "and changes nothing."
)


@shared
def check(
    where: Where,
    show: Show,
    path: ConfigArgument = None,
    live: Annotated[bool, typer.Option("--live", help=_LIVE_HELP)] = False,
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
        raise VerbError(f"no configuration at {target}")
    problems, found_odd = list(problems_of(target)), list(warnings_in(target))
    if (settings := _settings(target)) is not None:
        lost, drained = against_record(settings, where.store or settings.store.path)
        problems, found_odd = [*problems, *lost], [*found_odd, *drained]
    if show.output.for_people:
        sys.stdout.write("".join(f"{formatting.sanitize(str(p))}\n" for p in problems))
        sys.stdout.flush()
    elif problems or not live:
        present(show, lambda: Listing(PROBLEMS_SCHEMA, problem_columns(), problems, str))
    if problems:
        raise VerbError(f"{target}: {formatting.count(len(problems), 'problem')}", code=Exit.UNMET)
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


def problem_columns() -> tuple[Column, ...]:
    """Return the columns of mistakes in a configuration."""
    return (
        text("file", "File.", level=0),
        whole("line", "Line, from 1.", level=0),
        whole("col", "Column, from 1.", level=0),
        words("message", "What is wrong, and the repair.", least=20),
    )


def probe_columns() -> tuple[Column, ...]:
    """Return the columns of live probes."""
    nodes_doc = "Of a gap: the nodes that have it."
    gap_doc = (
        "Of a gap: what is not as the policy says (cpus, memory, disk, preemption, grace, ...); null: this is no gap "
        "but a look."
    )
    seen_doc = "What was seen, or what went wrong; of a gap, what is so, what was wanted, and the repair."
    return (
        text("view", "overlay, site:<name>, or store.", level=0),
        flag("ok", "Did it succeed? A gap is never ok.", level=0, tint={True: "green", False: "red"}),
        items("nodes", nodes_doc, level=0, least=12, wrap=True, spare=1, unit=formatting.fold_hostlist),
        text("dimension", gap_doc, lambda x: x.dimension or None, null=True, head="GAP", spare=1),
        words("text", seen_doc, head="SEEN", least=30),
    )


def _check_live(path: Path, show: Show) -> None:
    from provisioner.config import load

    settings = load(path)
    looks = asyncio.run(_probes(settings))
    present(
        replace(show, watch=False),
        lambda: Listing(PROBES_SCHEMA, probe_columns(), looks, lambda x: x.view),
    )
    failed = [x.view for x in looks if not x.ok and not x.dimension]
    gaps = [x.view for x in looks if x.dimension]
    wrong = [f"{len(failed)} of {len(looks) - len(gaps)} looks failed: {', '.join(failed)}"] if failed else []
    if gaps:
        wrong.append(f"{formatting.count(len(gaps), 'gap')} between policy and site: {', '.join(dict.fromkeys(gaps))}")
    if wrong:
        raise VerbError(*wrong, code=Exit.UNMET)


async def _probes(settings: Settings) -> list[Probe]:
    """Poll the overlay and each site once, concurrently, each with its own deadline; gaps come last."""
    async with asyncio.TaskGroup() as group:
        overlay = group.create_task(_probe_overlay(settings))
        sites = [group.create_task(_probe_site(settings, spec)) for spec in settings.sites]
    looks = [*overlay.result(), *(poll for site in sites for poll in site.result())]
    return [*looks, *await asyncio.to_thread(_probe_store, settings.store.path)]


def _probe_store(path: Path) -> list[Probe]:
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
    return [Probe("store", False, f"the record cannot be written: {why}. {repair}", "directory")]


async def _probe_overlay(settings: Settings) -> list[Probe]:
    """Poll the overlay once and, where the adapter can tell, find out what would fail later."""
    from provisioner import loader
    from provisioner.interfaces import SupportsProbe

    here = any(getattr(loader.site_adapter(spec.adapter), "on_this_host", False) for spec in settings.sites)
    within_s = settings.policy.overlay_max_age_s / 2
    looks: list[Probe] = []
    try:
        async with asyncio.timeout(2 * within_s):
            made = loader.overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
            async with made as overlay:
                async with asyncio.timeout(within_s):
                    looks.append(Probe("overlay", True, _pool_words(await overlay.poll(settings.types))))
                if isinstance(overlay, SupportsProbe):
                    async with asyncio.timeout(within_s):
                        looks += _gaps("overlay", await overlay.probe(here=here))
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        looks.append(Probe("overlay", False, ("probe: " if looks else "") + _error_words(error)))
    return looks


def _pool_words(view: OverlayView) -> str:
    idle = sum(c.waiting + c.fresh for c in view.classes)
    counts = f"{formatting.count(len(view.classes), 'class', 'classes')}, {formatting.count(idle, 'idle job')}, "
    return "; ".join([counts + formatting.count(len(view.slots), "slot"), *(*view.notices, *view.remarks)[:3]])


async def _probe_site(settings: Settings, spec: SiteConfig) -> list[Probe]:
    """Poll a site once and, where the adapter can tell, compare what it enforces with the policy."""
    from provisioner import loader
    from provisioner.interfaces import SupportsAudit

    name = f"site:{spec.name}"
    within_s = spec.policy.poll_deadline_s + 10.0
    looks: list[Probe] = []
    try:
        async with asyncio.timeout(2 * within_s):
            made = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, settings.controller)
            async with made as site:
                async with asyncio.timeout(within_s):
                    view = await site.poll()
                looks.append(Probe(name, True, _site_words(view)))
                looks += [
                    Probe(name, False, f"{spec.name}/{kind} can never start there: {lack}. Change the type", "fit")
                    for kind, lack in view.unfit.items()
                ]
                if isinstance(site, SupportsAudit):
                    async with asyncio.timeout(within_s):
                        looks += _gaps(name, await site.audit(spec.policy))
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        looks.append(Probe(name, False, ("audit: " if looks else "") + _error_words(error)))
    return looks


def _site_words(view: SiteView) -> str:
    """Return a summary of the view of a site."""
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


def _gaps(name: str, gaps: Sequence[AuditFinding]) -> list[Probe]:
    """Return gaps as rows: one row for what is the same on many nodes."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        nodes.setdefault((gap.dimension or "other", gap.message), []).append(gap.node)
    return [
        Probe(name, False, message, dimension, tuple(sorted({node for node in where if node})))
        for (dimension, message), where in nodes.items()
    ]


def _error_words(error: Exception) -> str:
    """Return the message of an adapter's error; of any other error also its class."""
    from provisioner.interfaces import AdapterError

    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, AdapterError) and str(error):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


render_app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@render_app.callback()
def render() -> None:
    """Print configuration for the other side: what a site's administrator puts in place.

    It is made from the site's YAML, which the planner and the drones follow too, and `provisioner check --live` tells
    where the site does not do it yet.

    \b
    Examples:
      provisioner render blocking --site topas
      provisioner render blocking --site topas > 60-provisioner.conf
      provisioner render blocking --site topas --config /etc/provisioner/provisioner.yaml
    """


@render_app.command("blocking")
def blocking(
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="The site whose configuration is wanted.")],
    config: ConfigPath = None,
) -> None:
    """Print what makes a site keep CPUs, memory and disk for its free GPUs, and put its owner first.

    In the site's own language (for an HTCondor cluster, the configuration of its execution nodes). Nothing is asked of
    the site, and nothing is changed there. The configuration may be the site's file alone; a site that the controller's
    file does not list is read from NAME.yaml beside it.

    \b
    Examples:
      provisioner render blocking --site topas
      provisioner render blocking --site topas > 60-provisioner.conf
      provisioner render blocking --site topas | ssh root@topas-a100-1 'cat > /etc/condor/config.d/60-provisioner.conf'
    """
    text = _rendered_blocking(*_named_site(config_path(Where(config=config)), site))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()
    note(f"site {site}: once it is in place, `provisioner check --live` tells where it does not hold")


def _named_site(path: Path, name: str) -> tuple[str, SiteConfig]:
    """Return the controller's name and a site: of a site file alone, of a file beside it, or of a configuration."""
    from provisioner.config import load, load_site
    from provisioner.config.messages import choices

    tree, beside = yaml.read(path).tree, path.parent / f"{name}.yaml"
    controller = str(tree.get("controller") or "provisioner")
    sites = [load_site(path)] if "site" in tree else []
    if not sites and "/" not in name and beside.is_file():
        sites = [load_site(beside)]
    if "site" not in tree and name not in (spec.name for spec in sites):
        sites += load(path).sites
    for spec in sites:
        if spec.name == name:
            return controller, spec
    raise VerbError(f"no site {name[:80]!r} in {path.absolute()}: {choices(name, [s.name for s in sites])}")


def _rendered_blocking(controller: str, spec: SiteConfig) -> str:
    from provisioner import loader
    from provisioner.interfaces import AdapterError, SupportsRenderBlocking

    if not spec.policy.blocking:
        raise VerbError(
            f"{spec.path}: site {spec.name} has no blocking, so there is nothing to render",
            "say what each free GPU keeps, at the top level of that file:",
            "  blocking: [{cpus: 8, memory: 20 GiB, disk: 50 GiB}]",
            code=Exit.UNMET,
        )
    try:
        made = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, controller)
        if not isinstance(made, SupportsRenderBlocking):
            raise VerbError(
                f"adapter {spec.adapter} of site {spec.name} cannot render blocking: what its site needs for it is "
                "for its administrator to say; the planner and the drones keep the reserve all the same"
            )
        return made.render_blocking(spec.policy)
    except (AdapterError, loader.AdapterBrokenError, loader.AdapterUnknownError) as error:
        raise VerbError(f"site {spec.name}: {error}") from error
