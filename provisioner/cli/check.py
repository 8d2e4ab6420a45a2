"""``provisioner check`` and ``render``: mistakes in the configuration, gaps at sites, configuration for sites."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import controller_of
from provisioner.cli.sites import gpu_count, owner_words
from provisioner.config import Problem, Settings
from provisioner.config import strict_yaml as yaml
from provisioner.store import StoreError

if TYPE_CHECKING:
    from provisioner.config import SiteConfig
    from provisioner.interfaces import AuditFinding
    from provisioner.model import OverlayView, SiteView


WARNING = "warning: "


def against_record(settings: Settings, path: Path) -> Iterator[Problem]:
    """Yield what leaves live drones on record at ``path`` without a controller, and as warnings what drains them.

    Without a record there is nothing to compare. A record that cannot be read is a warning.
    """
    if not path.is_file():
        return
    from provisioner.store.reader import Reader

    try:
        live = Reader(path).drones()
    except (OSError, StoreError) as error:
        why = formatting.sanitize(str(error), formatting.SHORT_TEXT)
        message = f"{WARNING}not compared with the drones on record: {why}"
        yield _problem_at(settings.path, ("store", "path"), message)
        return
    files = {site.name: site.path for site in settings.sites}
    types = {kind.key for kind in settings.types}
    others = Counter(name for d in live if (name := controller_of(d.id)) != settings.controller)
    lost = Counter(d.site for d in live if d.site not in files)
    renamed = Counter(d.type for d in live if d.site in files and d.type not in types)
    for name, count in sorted(others.items()):
        message = (
            f"`{settings.controller}`: {formatting.count(count, 'live drone')} on record would be left without a "
            f"controller: the name is in their ids. Keep `{name}`, or drain them first"
        )
        yield _problem_at(settings.path, ("controller",), message)
    for name, count in sorted(lost.items()):
        message = (
            f"`sites`: site `{name}` was removed, and {formatting.count(count, 'live drone')} would be left without a "
            "controller. Put it back with `enabled: false`, drain them, then remove it"
        )
        yield _problem_at(settings.path, ("sites",), message)
    for kind, count in sorted(renamed.items()):
        site, _, name = kind.partition("/")
        drained = f"its {formatting.count(count, 'live drone')} will be drained"
        yield _problem_at(files[site], ("types",), f"{WARNING}type `{name}` was removed or renamed: {drained}")


def _problem_at(path: Path, at: tuple[str, ...], message: str) -> Problem:
    document = yaml.read(path)
    spot = document.value_position(at) if at == ("controller",) else document.key_position(at)
    return Problem(str(path), spot.line, spot.col, message)


PROBLEMS_SCHEMA = "provisioner.problems/1"
PROBES_SCHEMA = "provisioner.looks/1"


class Probe(NamedTuple):
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


@opt.shared
def check(
    where: opt.Where,
    show: opt.Show,
    path: opt.ConfigArgument = None,
    live: Annotated[bool, opt.switch(_LIVE_HELP, "--live")] = False,
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
    from provisioner.config import load
    from provisioner.config import warnings as warnings_in

    target = path or opt.config_path(where)
    if not target.exists():
        raise opt.VerbError(f"no configuration at {target}")
    problems, found_odd = list(problems_of(target)), list(warnings_in(target))
    if (settings := _settings(target)) is not None:
        for problem in against_record(settings, where.store or settings.store.path):
            (found_odd if problem.message.startswith(WARNING) else problems).append(problem)
    if show.output.for_people:
        sys.stdout.write("".join(f"{formatting.sanitize(str(p))}\n" for p in problems))
        sys.stdout.flush()
    elif problems or not live:
        out.present(show, lambda: out.Listing(PROBLEMS_SCHEMA, problem_columns(), problems, str))
    if problems:
        raise opt.VerbError(f"{target}: {formatting.count(len(problems), 'problem')}", code=opt.Exit.UNMET)
    for warning in found_odd:
        out.note(formatting.sanitize(str(warning)))
    out.note(f"{target}: no problem")
    if live:
        _check_live(settings or load(target), show)


def _settings(path: Path) -> Settings | None:
    """Return the configuration at ``path``; None for a site file alone."""
    from provisioner.config import ConfigError, load

    try:
        return load(path)
    except ConfigError:
        return None


def problem_columns() -> tuple[out.Column, ...]:
    """Return the columns of mistakes in a configuration."""
    return (
        out.text("file", "File.", level=0),
        out.whole("line", "Line, from 1.", level=0),
        out.whole("col", "Column, from 1.", level=0),
        out.words("message", "What is wrong, and the repair.", least=20),
    )


def probe_columns() -> tuple[out.Column, ...]:
    """Return the columns of live probes."""
    gap_doc = (
        "Of a gap: what is not as the policy says (cpus, memory, disk, preemption, grace, ...); null: this is no gap "
        "but a look."
    )
    seen_doc = "What was seen, or what went wrong; of a gap, what is so, what was wanted, and the repair."
    nodes = out.items("nodes", "Of a gap: the nodes that have it.", level=0, least=12, wrap=True, spare=1)
    ok_tints = {True: "green", False: "red"}
    return (
        out.text("view", "overlay, site:<name>, or store.", level=0),
        out.flag("ok", "Did it succeed? A gap is never ok.", level=0, tint=ok_tints),
        replace(nodes, unit=formatting.fold_hostlist),
        out.text("dimension", gap_doc, lambda x: x.dimension or None, null=True, head="GAP", spare=1),
        out.words("text", seen_doc, head="SEEN", least=30),
    )


def _check_live(settings: Settings, show: opt.Show) -> None:
    looks = asyncio.run(_probes(settings))
    listing = out.Listing(PROBES_SCHEMA, probe_columns(), looks, lambda x: x.view)
    out.present(replace(show, watch=False), lambda: listing)
    failed = [x.view for x in looks if not x.ok and not x.dimension]
    gaps = [x.view for x in looks if x.dimension]
    wrong = [f"{len(failed)} of {len(looks) - len(gaps)} looks failed: {', '.join(failed)}"] if failed else []
    if gaps:
        wrong.append(f"{formatting.count(len(gaps), 'gap')} between policy and site: {', '.join(dict.fromkeys(gaps))}")
    if wrong:
        raise opt.VerbError(*wrong, code=opt.Exit.UNMET)


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


async def _probe(
    name: str,
    within_s: float,
    make: Callable[[], Any],
    look: Callable[[Any], Awaitable[list[Probe]]],
    audit: Callable[[Any], Awaitable[Sequence[AuditFinding]]],
) -> list[Probe]:
    """Poll an adapter once and, where it can tell, find out what would fail later."""
    looks: list[Probe] = []
    try:
        async with asyncio.timeout(2 * within_s), make() as adapter:
            async with asyncio.timeout(within_s):
                looks += await look(adapter)
            async with asyncio.timeout(within_s):
                looks += _gaps(name, await audit(adapter))
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        looks.append(Probe(name, False, ("audit: " if looks else "") + _error_words(error)))
    return looks


async def _probe_overlay(settings: Settings) -> list[Probe]:
    from provisioner import loader
    from provisioner.interfaces import SupportsProbe

    def make() -> Any:
        return loader.overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)

    async def look(overlay: Any) -> list[Probe]:
        return [Probe("overlay", True, _pool_words(await overlay.poll(settings.types)))]

    async def audit(overlay: Any) -> Sequence[AuditFinding]:
        here = any(getattr(loader.site_adapter(spec.adapter), "on_this_host", False) for spec in settings.sites)
        return await overlay.probe(here=here) if isinstance(overlay, SupportsProbe) else ()

    return await _probe("overlay", settings.policy.overlay_max_age_s / 2, make, look, audit)


def _pool_words(view: OverlayView) -> str:
    idle = sum(c.waiting + c.fresh for c in view.classes)
    counts = f"{formatting.count(len(view.classes), 'class', 'classes')}, {formatting.count(idle, 'idle job')}, "
    return "; ".join([counts + formatting.count(len(view.slots), "slot"), *(*view.notices, *view.remarks)[:3]])


async def _probe_site(settings: Settings, spec: SiteConfig) -> list[Probe]:
    from provisioner import loader
    from provisioner.interfaces import SupportsAudit

    name = f"site:{spec.name}"

    def make() -> Any:
        return loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, settings.controller)

    async def look(site: Any) -> list[Probe]:
        view = await site.poll()
        unfit = ((kind, f"can never start there: {lack}. Change the type") for kind, lack in view.unfit.items())
        return [
            Probe(name, True, _site_words(view)),
            *(Probe(name, False, f"{spec.name}/{kind} {why}", "fit") for kind, why in unfit),
        ]

    async def audit(site: Any) -> Sequence[AuditFinding]:
        return await site.audit(spec.policy) if isinstance(site, SupportsAudit) else ()

    return await _probe(name, spec.policy.poll_deadline_s + 10.0, make, look, audit)


def _site_words(view: SiteView) -> str:
    """Return a summary of the view of a site."""
    parts = [formatting.count(len(view.drones), "drone")]
    if view.nodes:
        free, total = sum(n.free_gpu_milli for n in view.nodes), sum(n.gpu_milli for n in view.nodes)
        nodes = formatting.count(len(view.nodes), "node")
        parts.append(f"{nodes} with {formatting.gpus(free)} of {gpu_count(total)} free")
    if view.free is not None:
        parts.append("free: " + (", ".join(f"{n} {t}" for t, n in view.free.items()) or "nothing"))
    if owner := owner_words(view):
        parts.append(f"the owner: {owner}")
    return "; ".join([*parts, *(*view.notices, *view.remarks)[:3]])


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
    site: Annotated[str, opt.option("NAME", "The site whose configuration is wanted.")], config: opt.ConfigPath = None
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
    text = _rendered_blocking(*_named_site(opt.config_path(opt.Where(config=config)), site))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()
    out.note(f"site {site}: once it is in place, `provisioner check --live` tells where it does not hold")


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
    raise opt.VerbError(f"no site {name[:80]!r} in {path.absolute()}: {choices(name, [s.name for s in sites])}")


def _rendered_blocking(controller: str, spec: SiteConfig) -> str:
    from provisioner import loader
    from provisioner.interfaces import AdapterError, SupportsRenderBlocking

    if not spec.policy.blocking:
        raise opt.VerbError(
            f"{spec.path}: site {spec.name} has no blocking, so there is nothing to render",
            "say what each free GPU keeps, at the top level of that file:",
            "  blocking: [{cpus: 8, memory: 20 GiB, disk: 50 GiB}]",
            code=opt.Exit.UNMET,
        )
    try:
        made = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, controller)
        if not isinstance(made, SupportsRenderBlocking):
            raise opt.VerbError(
                f"adapter {spec.adapter} of site {spec.name} cannot render blocking: what its site needs for it is "
                "for its administrator to say; the planner and the drones keep the reserve all the same"
            )
        return made.render_blocking(spec.policy)
    except (AdapterError, loader.AdapterBrokenError, loader.AdapterUnknownError) as error:
        raise opt.VerbError(f"site {spec.name}: {error}") from error
