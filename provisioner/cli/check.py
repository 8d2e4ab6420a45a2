"""``provisioner check``, ``render`` and ``import``: mistakes in the configuration, gaps at sites, files for both."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

from provisioner import formatting, loader, mig
from provisioner.answers.columns import Listing, picked
from provisioner.answers.errors import UnmetError, VerbError, reported, unknown
from provisioner.answers.files import (
    PROBE_COLUMNS,
    PROBES_SCHEMA,
    PROBLEM_COLUMNS,
    PROBLEMS_SCHEMA,
    Probe,
)
from provisioner.answers.lookup import controller_of
from provisioner.answers.query import ListQuery, Query
from provisioner.answers.sites import gpu_count, owner_words
from provisioner.cli import options as opt, output as out
from provisioner.cli.pipes import closed_pipes_raise
from provisioner.interfaces import (
    AdapterError,
    AuditFinding,
    SupportsAudit,
    SupportsProbe,
    SupportsRenderAccess,
    SupportsRenderAccounting,
    SupportsRenderBlocking,
)
from provisioner.keys import site_of, type_name
from provisioner.model import OverlayView, SiteView
from provisioner.services.addresses import service_environment
from provisioner.services.balancer_config import (
    KEYS,
    BalancedService,
    balancer_config,
    hashed_tokens,
    tokens_file,
)
from provisioner.store import StoreError, StoreUnusableError
from provisioner.store.database import Place, database_of
from provisioner.store.reader import Reader

if TYPE_CHECKING:
    from provisioner import config

WARNING = "warning: "


def against_record(settings: config.Settings, path: Place) -> Iterator[config.Problem]:
    """Yield what leaves live drones on record at ``path`` without a controller, and as warnings what drains them.

    Without a record there is nothing to compare. A record that cannot be read is a warning.
    """
    if isinstance(path, Path) and not path.is_file():
        return
    try:
        live = Reader(path).drones()
    except (OSError, StoreUnusableError) as error:
        why = formatting.sanitize(str(error), formatting.SHORT_TEXT)
        message = f"{WARNING}not compared with the drones on record: {why}"
        yield _problem_at(settings.path, ("store", "path"), message)
        return
    except StoreError:  # the server has no record yet
        return
    files = {site.name: site.path for site in settings.sites}
    types = {kind.key for kind in settings.types}

    def counted(names: Iterable[str]) -> list[tuple[str, str]]:
        return [
            (name, formatting.count(number, "live drone"))
            for name, number in sorted(Counter(names).items())
        ]

    for name, count in counted(
        name for d in live if (name := controller_of(d.id)) != settings.controller
    ):
        message = (
            f"`{settings.controller}`: {count} on record would be left without a controller: the name is in their ids. "
            f"Keep `{name}`, or drain them first"
        )
        yield _problem_at(settings.path, ("controller",), message)
    for name, count in counted(d.site for d in live if d.site not in files):
        message = (
            f"`sites`: site `{name}` was removed, and {count} would be left without a controller. Put it back with "
            "`enabled: false`, drain them, then remove it"
        )
        yield _problem_at(settings.path, ("sites",), message)
    for kind, count in counted(d.type for d in live if d.site in files and d.type not in types):
        message = (
            f"{WARNING}type `{type_name(kind)}` was removed or renamed: its {count} will be drained"
        )
        yield _problem_at(files[site_of(kind)], ("types",), message)


def _problem_at(path: Path, at: tuple[str, ...], message: str) -> config.Problem:
    from provisioner import config
    from provisioner.config import strict_yaml as yaml

    document = yaml.read(path)
    spot = document.value_position(at) if at == ("controller",) else document.key_position(at)
    return config.Problem(str(path), spot.line, spot.col, message)


_LIVE_HELP = (
    "Also poll each site and the overlay once and compare them with the policy. Changes nothing, but a computing "
    "element is sent a job that ends at once."
)


@opt.shared
def check(
    query: Query,
    host: opt.Host,
    path: opt.ConfigArgument = None,
    live: Annotated[bool, opt.switch(_LIVE_HELP, "--live")] = False,
) -> None:
    """Check the configuration and its site files.

    Prints each mistake as file:line:col with the repair; exit 3 if there are any. Drones on record are checked, too: a
    change that leaves them without a controller is a mistake, one that drains them is a warning. With --live, exit 3
    also if a poll fails or a site differs from the policy (blocking, the owner's priority, grace, MIG layouts).

    \b
    Examples:
      provisioner check /etc/provisioner/provisioner.yaml --live
      provisioner check --live -o json | jq '.items[] | select(.dimension != null) | {view, nodes, text}'
    """
    from provisioner import config

    target = path or opt.config_path(host)
    if not target.exists():
        raise VerbError(f"no configuration at {target}")
    problems, found_odd, settings = config.check(target)
    if settings is not None:
        for problem in against_record(settings, opt.named_place(host) or settings.record):
            (found_odd if problem.message.startswith(WARNING) else problems).append(problem)
    if query.output.for_people:
        sys.stdout.write("".join(f"{formatting.sanitize(str(p))}\n" for p in problems))
        sys.stdout.flush()
    elif problems or not live:
        out.present(query, host, lambda: Listing(PROBLEMS_SCHEMA, PROBLEM_COLUMNS, problems))
    if problems:
        raise UnmetError(f"{target}: {formatting.count(len(problems), 'problem')}")
    out.note(*map(str, found_odd), f"{target}: no problem")
    if live:
        _check_live(settings or config.load(target), query, host)


def _check_live(settings: config.Settings, query: Query, host: opt.Host) -> None:
    with closed_pipes_raise():
        probed = asyncio.run(_probes(settings))
    looks = [*probed, *_probe_store(settings.record)]
    listing = Listing(PROBES_SCHEMA, PROBE_COLUMNS, looks, lambda probe: probe.view)
    out.present(query, replace(host, watch=False), lambda: listing)
    failed = [x.view for x in looks if not x.ok and not x.dimension]
    gaps = [x.view for x in looks if x.dimension]
    wrong = (
        [f"{len(failed)} of {len(looks) - len(gaps)} polls failed: {', '.join(failed)}"]
        if failed
        else []
    )
    if gaps:
        wrong.append(
            f"{formatting.count(len(gaps), 'gap')} between policy and site: {', '.join(dict.fromkeys(gaps))}"
        )
    if wrong:
        raise UnmetError(*wrong)


async def _probes(settings: config.Settings) -> list[Probe]:
    """Poll the overlay and each site once, concurrently, each with its own deadline."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_probe_overlay(settings))]
        tasks += [group.create_task(_probe_site(settings, spec)) for spec in settings.sites]
    return [probe for task in tasks for probe in task.result()]


def _probe_store(place: Place) -> list[Probe]:
    """Return a gap if no controller of this user could write the record at ``place``."""
    try:
        why = database_of(place).probe()
    except StoreError as error:
        why = str(error)
    what = "directory" if isinstance(place, Path) else "database"
    return [Probe("store", False, f"the record cannot be written: {why}", what)] if why else []


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
                gaps = await audit(adapter)
            nodes: dict[tuple[str, str], set[str]] = {}  # a row for what is the same on many nodes
            for gap in gaps:
                nodes.setdefault((gap.dimension or "other", gap.message), set()).add(gap.node)
            looks += [
                Probe(name, False, said, lack, sorted(where - {""}))
                for (lack, said), where in nodes.items()
            ]
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        why = " ".join(str(error).split())
        if isinstance(error, TimeoutError):
            why = "no answer in time"
        elif not (isinstance(error, AdapterError) and why):
            why = f"{type(error).__name__}: {why}"
        looks.append(Probe(name, False, f"audit: {why}" if looks else why))
    return looks


async def _probe_overlay(settings: config.Settings) -> list[Probe]:
    def make() -> Any:
        return loader.overlay_adapter(settings.overlay.adapter)(
            settings.overlay.options, settings.controller
        )

    async def look(overlay: Any) -> list[Probe]:
        view: OverlayView = await overlay.poll(settings.types)
        counts = (
            formatting.count(len(view.classes), "class", "classes"),
            formatting.count(sum(c.waiting + c.fresh for c in view.classes), "idle job"),
            formatting.count(len(view.slots), "slot"),
        )
        return [
            Probe(
                "overlay", True, "; ".join([", ".join(counts), *(*view.notices, *view.remarks)[:3]])
            )
        ]

    async def audit(overlay: Any) -> Sequence[AuditFinding]:
        here = any(
            getattr(loader.site_adapter(spec.adapter), "on_this_host", False)
            for spec in settings.sites
        )
        return await overlay.probe(here=here) if isinstance(overlay, SupportsProbe) else ()

    return await _probe("overlay", settings.policy.overlay_max_age_s / 2, make, look, audit)


async def _probe_site(settings: config.Settings, spec: config.SiteConfig) -> list[Probe]:
    name = f"site:{spec.name}"

    async def look(site: Any) -> list[Probe]:
        view: SiteView = await site.poll()
        unfit = (
            (kind, f"can never start there: {lack}. Change the type")
            for kind, lack in view.unfit.items()
        )
        return [
            Probe(name, True, _site_words(view)),
            *(Probe(name, False, f"{spec.name}/{kind} {why}", "fit") for kind, why in unfit),
        ]

    async def audit(site: Any) -> Sequence[AuditFinding]:
        return await site.audit(spec.policy) if isinstance(site, SupportsAudit) else ()

    deadline_s = spec.policy.poll_deadline_s + 10.0
    return await _probe(name, deadline_s, lambda: _adapter(spec, settings.controller), look, audit)


def _adapter(spec: config.SiteConfig, controller: str) -> Any:
    return loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, controller)


def _site_words(view: SiteView) -> str:
    parts = [formatting.count(len(view.drones), "drone")]
    if view.nodes:
        free = sum(n.free_gpu_milli for n in view.nodes)
        total = sum(n.gpu_milli for n in view.nodes)
        nodes = formatting.count(len(view.nodes), "node")
        parts.append(f"{nodes} with {formatting.gpus(free)} of {gpu_count(total)} free")
    if view.free is not None:
        parts.append("free: " + (", ".join(f"{n} {t}" for t, n in view.free.items()) or "nothing"))
    if owner := owner_words(view):
        parts.append(f"the owner: {owner}")
    return "; ".join([*parts, *(*view.notices, *view.remarks)[:3]])


render_app = opt.verbs(no_args_is_help=True)


@render_app.callback()
def render() -> None:
    """Print configuration for administrators of sites and of the monitoring."""


@render_app.command("blocking")
def blocking(
    site: Annotated[str, opt.option("NAME", "Name of the site.")],
    path: opt.ConfigPath = None,
) -> None:
    """Print the configuration with which a site reserves resources for its free GPUs and prefers its owner.

    The format is that of the site, for example the configuration of the execution nodes of an HTCondor cluster. The
    site is not contacted. --config may name the site's file. A site that the controller's file does not list is read
    from NAME.yaml beside it.

    \b
    Examples:
      provisioner render blocking --site topas | ssh root@topas-a100-1 'cat > /etc/condor/config.d/60-provisioner.conf'
    """
    text = _rendered_blocking(*_named_site(opt.config_path(opt.Where(config=path)), site))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()
    out.note(
        f"site {site}: after its installation, `provisioner check --live` reports nodes that differ"
    )


@render_app.command("kubernetes")
def kubernetes(
    site: Annotated[str, opt.option("NAME", "Name of the site.")],
    path: opt.ConfigPath = None,
) -> None:
    """Print the namespace, rights, quota and priority of the drones of a Kubernetes site.

    The site is not contacted. The administrator of the cluster applies the output.

    \b
    Examples:
      provisioner render kubernetes --site cern | kubectl apply -f -
    """
    controller, spec = _named_site(opt.config_path(opt.Where(config=path)), site)
    with _reported_of(spec):
        made = _adapter(spec, controller)
        if not isinstance(made, SupportsRenderAccess):
            raise VerbError(
                f"site {spec.name} is not a Kubernetes site: its adapter is {spec.adapter}"
            )
        sys.stdout.write(made.render_access(spec.policy))


@render_app.command("deployment")
def deployment(
    image: Annotated[str, opt.option("IMAGE", "Image built from packaging/images/controller.")],
    namespace: Annotated[str, opt.option("NAME", "Namespace of the objects.")] = "gpu-drones",
) -> None:
    """Print Kubernetes objects for the controller and its web service.

    One replica, with its record in a volume. No cluster is contacted. The configuration is a ConfigMap and the tokens
    are a Secret, both named gpu-drone-provisioner. For a Kubernetes site also apply `render kubernetes`.

    \b
    Examples:
      provisioner render deployment --image registry.example.org/provisioner:0.1.0 | kubectl apply -f -
    """
    template = Template((files("provisioner.cli") / "deployment.yaml").read_text(encoding="utf-8"))
    sys.stdout.write(template.substitute(image=json.dumps(image), namespace=json.dumps(namespace)))


@render_app.command("mig")
def mig_layout(
    site: Annotated[str, opt.option("NAME", "Name of the site.")],
    path: opt.ConfigPath = None,
) -> None:
    """Print a script for root that divides the GPUs of a site into MIG instances.

    The instances are those of `mig` in the site's file. The site is not contacted. The GPUs must be unused while the
    script runs.

    \b
    Examples:
      provisioner render mig --site topas > mig.sh
    """
    spec = _named_site(opt.config_path(opt.Where(config=path)), site)[1]
    if not spec.policy.mig:
        raise UnmetError(
            f"{spec.path}: site {spec.name} has no `mig`, so there is nothing to render",
            "write the instances of each GPU at the top level of that file:",
            "  mig: [{gpu_model: A100-40, layout: [3g.20gb, 2g.10gb, 1g.5gb, 1g.5gb]}]",
        )
    layouts = [(each.gpu_model, each.layout, each.nodes) for each in spec.policy.mig]
    with _reported_of(spec):
        audits = getattr(loader.site_adapter(spec.adapter), "audits_mig", False)
    sys.stdout.write(mig.script(site, layouts))
    sys.stdout.flush()
    then = "`provisioner check --live` reports nodes that differ"
    if not audits:
        then = f"compare the nodes with `nvidia-smi -L`: `check --live` cannot at a site of adapter {spec.adapter}"
    out.note(f"site {site}: run it as root on each node; then {then}")


@render_app.command("gpu-view")
def gpu_view(
    jobs: Annotated[
        str, opt.option("EXPR", "ClassAd expression that selects the jobs; TARGET is the job.")
    ] = "TARGET.RoutedFromJobId isnt undefined",
) -> None:
    """Print a START expression by which drones refuse jobs if nvidia-smi does not show the job's GPU.

    Put the line into overlay.options.drone_config. It concerns pilot jobs, which choose their work by the GPU and the
    memory that they find: by default all jobs that came through a CE.

    \b
    Examples:
      provisioner render gpu-view
      provisioner render gpu-view --jobs 'TARGET.x509UserProxyVOName == "atlas"'
    """
    sys.stdout.write(f"START = $(START) && (MY.GpuViewTrue =!= False || ({jobs}) =!= True)\n")


@render_app.command("accounting")
def accounting(
    path: opt.ConfigPath = None,
    to: Annotated[Path, opt.option("DIRECTORY", "Where the files are written.")] = Path("."),
) -> None:
    """Write what AUDITOR and APEL need: lines of the pool, the configuration of both plug-ins, a table of components.

    Files of these names are replaced. Nothing is asked of the pool, and nothing is sent.

    \b
    Examples:
      provisioner render accounting --to accounting
    """
    from provisioner import config

    settings = config.load(opt.config_path(opt.Where(config=path)))
    overlay = loader.overlay_adapter(settings.overlay.adapter)(
        settings.overlay.options, settings.controller
    )
    if not isinstance(overlay, SupportsRenderAccounting):
        raise VerbError(f"overlay {settings.overlay.adapter} has no files for accounting systems")
    to.mkdir(parents=True, exist_ok=True)
    for name, text in overlay.render_accounting(settings.types).items():
        (to / name).write_text(text, encoding="utf-8")
        out.note(f"written: {to / name}")


@render_app.command("balancer")
def balancer(
    path: opt.ConfigPath = None,
    to: Annotated[
        Path | None, opt.option("DIRECTORY", "Write it there, with hashes of tokens, and keys.")
    ] = None,
    address_of: Annotated[
        str | None, opt.option("NAME", "Print what gives jobs the address of this service instead.")
    ] = None,
) -> None:
    """Print the configuration of haproxy for the inference services.

    The printed configuration reads its other files from /etc/haproxy. With --to they are written as well, for root
    alone: install all on the balancer's host. Do so again after a change of `services` or of a secret.

    Jobs in drones get the address. For other nodes of a pool, --address-of prints the configuration of HTCondor.

    \b
    Examples:
      provisioner render balancer
      provisioner render balancer --to /etc/haproxy
      provisioner render balancer --address-of cms > 60-inference.conf
    """
    from provisioner import config

    settings = config.load(opt.config_path(opt.Where(config=path)))
    if not settings.services or settings.balancer is None:
        raise UnmetError(
            "no `services`, or no `balancer` in front of them, so there is nothing to render",
            "write both in the controller file:",
            "  services: [{name: cms, at_most: 4}]",
            "  balancer: {socket: /run/haproxy/admin.sock, host: balancer.example.org}",
        )
    if address_of is not None:
        sys.stdout.write(_address_of(settings, settings.balancer.host, address_of))
        return
    services = [
        BalancedService(each.settings, bool(each.tokens), each.key is not None)
        for each in settings.services
    ]
    directory = to.absolute() if to else Path("/etc/haproxy")
    text = balancer_config(services, settings.balancer.socket, directory)
    if to is None:
        sys.stdout.write(text)
        return
    files = {"haproxy.cfg": text, **_balancer_secrets(settings)}
    to.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (to / name).unlink(missing_ok=True)
        (to / name).touch(mode=0o600)
        (to / name).write_text(content, encoding="utf-8")
        out.note(f"written: {to / name}")


def _address_of(settings: config.Settings, host: str, name: str) -> str:
    """Return the configuration of HTCondor that gives jobs the address of a service."""
    services = {each.settings.name: each.settings for each in settings.services}
    if name not in services:
        raise unknown("service", name, list(services), "")
    words = service_environment(services[name], host).items()
    return f'STARTER_JOB_ENVIRONMENT = "{" ".join(f"{key}={value}" for key, value in words)}"\n'


def _balancer_secrets(settings: config.Settings) -> Mapping[str, str]:
    """Return the texts of the files with hashes of tokens, and with keys."""
    from provisioner.config.units import SecretUnreadableError

    with reported(SecretUnreadableError):
        secrets = {
            tokens_file(each.settings.name): hashed_tokens(
                {vo: one.read() for vo, one in each.tokens.items()}
            )
            for each in settings.services
            if each.tokens
        }
        keys = [
            f"{each.settings.name} {each.key.read()}\n" for each in settings.services if each.key
        ]
    return {**secrets, KEYS: "".join(keys)} if keys else secrets


@render_app.command("grafana")
def grafana(
    to: Annotated[Path, opt.option("DIRECTORY", "Directory for the files.")] = Path("."),
) -> None:
    """Write the Grafana dashboards, one JSON file each; existing files are replaced.

    Import them, or provision them as files. Each dashboard lets you choose the Prometheus data source.

    \b
    Examples:
      provisioner render grafana --to /etc/grafana/provisioning/dashboards/provisioner
    """
    to.mkdir(parents=True, exist_ok=True)
    for board in (files("provisioner.monitoring") / "grafana").iterdir():
        path = to / board.name
        path.write_bytes(board.read_bytes())
        out.note(f"written: {path}")


@render_app.command("alerts")
def alerts(
    runbooks: Annotated[
        str | None, opt.option("URL", "Address of the runbooks, for runbook_url.")
    ] = None,
) -> None:
    """Print the alert rules for Prometheus.

    \b
    Examples:
      provisioner render alerts > /etc/prometheus/rules.d/provisioner.yml
    """
    rules = (files("provisioner.monitoring") / "alerts.yml").read_text(encoding="utf-8")
    sys.stdout.write(
        rules.replace("docs/how-to/runbooks.md", runbooks or "docs/how-to/runbooks.md")
    )


def _named_site(path: Path, name: str) -> tuple[str, config.SiteConfig]:
    """Return the controller's name and a site: of a site file alone, of a file beside it, or of a configuration."""
    from provisioner import config
    from provisioner.config import strict_yaml as yaml

    tree = yaml.read(path).tree
    beside = path.parent / f"{name}.yaml"
    controller = str(tree.get("controller") or "provisioner")
    sites = [config.load_site(path)] if "site" in tree else []
    if not sites and "/" not in name and beside.is_file():
        sites = [config.load_site(beside)]
    if "site" not in tree and name not in (spec.name for spec in sites):
        sites += config.load(path).sites
    for spec in sites:
        if spec.name == name:
            return controller, spec
    raise unknown("site", name, [spec.name for spec in sites], f" in {path.absolute()}")


def _reported_of(spec: config.SiteConfig) -> AbstractContextManager[None]:
    """Report what an adapter raises as an error of its site."""
    broken = (loader.AdapterBrokenError, loader.AdapterUnknownError)
    return reported(AdapterError, *broken, prefix=f"site {spec.name}: ")


def _rendered_blocking(controller: str, spec: config.SiteConfig) -> str:
    if not spec.policy.blocking:
        raise UnmetError(
            f"{spec.path}: site {spec.name} has no blocking, so there is nothing to render",
            "write at the top level of that file what to reserve for each free GPU:",
            "  blocking: [{cpus: 8, memory: 20 GiB, disk: 50 GiB}]",
        )
    with _reported_of(spec):
        made = _adapter(spec, controller)
        if isinstance(made, SupportsRenderBlocking):
            return made.render_blocking(spec.policy)
    raise VerbError(
        f"adapter {spec.adapter} of site {spec.name} cannot render blocking: what its site needs for it is "
        "for its administrator to say; the planner and the drones keep the reserve in any case"
    )


@opt.shared
def import_tardis(
    query: ListQuery,
    screen: opt.Screen,
    tardis: Annotated[
        Path,
        opt.argument(
            "TARDIS_YML", "Configuration of TARDIS, or of COBalD with a section `tardis`."
        ),
    ],
    cobald: Annotated[
        Path | None, opt.option("COBALD_YML", "Configuration of COBalD with the pipeline.")
    ] = None,
    to: Annotated[Path, opt.option("DIRECTORY", "Directory for the files.")] = Path("."),
    force: Annotated[bool, opt.switch("Overwrite existing files.", "--force")] = False,
) -> None:
    """Convert a COBalD/TARDIS configuration.

    Writes provisioner.yaml and a file per site. Reports for each key of the old files: converted; changed (the meaning
    differs); no counterpart; needs you. Fill in the values <...> of the new files; `provisioner check` lists them. No
    old code runs, and no secret is copied. Exit 3 if a key needs you or the old files are invalid; invalid files write
    nothing.

    \b
    Examples:
      provisioner import tardis.yml --cobald cobald.yml --to new
      provisioner import tardis.yml --to new -o json | jq -r '.items[] | select(.verdict == "needs you") | .ours'
    """
    from provisioner.answers.migration import FINDING_COLUMNS, IMPORT_SCHEMA, OUTCOME_TINTS
    from provisioner.config import strict_yaml as yaml
    from provisioner.migrate import ImportOutcome, ImportSource, convert

    def read_file(name: str) -> str | None:
        """Return a file that TARDIS names: beside its configuration, or here, where TARDIS is started."""
        try:
            texts = (
                yaml.text_of(place, yaml.YamlDocument(str(place)))
                for place in (tardis.parent / name, Path(name))
            )
            return next((text for text in texts if text is not None), None)
        except ValueError:  # a name that cannot be one of a file
            return None

    documents = [yaml.YamlDocument(str(path)) for path in (tardis, cobald) if path is not None]
    contents = [yaml.text_of(Path(document.file), document) for document in documents]
    sources = [
        ImportSource(document, text)
        for document, text in zip(documents, contents, strict=True)
        if text is not None
    ]
    made = (
        convert(*sources, installed=loader.adapter_names(loader.SITES), read_file=read_file)
        if None not in contents
        else None
    )
    if made is None:
        problems = [
            formatting.sanitize(str(problem))
            for document in documents
            for problem in document.problems
        ]
        summary = f"{formatting.count(len(problems), 'problem')}: nothing is written"
        raise UnmetError(*problems, summary)
    write_files(to, made.files, force, ", or overwrite it with --force")
    rows = sorted(made.findings, key=lambda finding: list(OUTCOME_TINTS).index(finding.verdict))
    listing = Listing(IMPORT_SCHEMA, FINDING_COLUMNS, rows, lambda finding: finding.key)
    out.present(
        query,
        replace(screen, watch=False),
        lambda: picked(listing, query.sort, query.limit),
    )
    out.note(f"written to {to}: {', '.join(made.files)}")
    counts = ", ".join(
        f"{made.count(outcome)} {outcome.value}" for outcome in ImportOutcome if made.count(outcome)
    )
    if made.count(ImportOutcome.NEEDED):
        raise UnmetError(f"{counts}; fill in each <...>, then: provisioner check")
    out.note(counts)


def write_files(
    to: Path, files: Mapping[str, str], force: bool = False, otherwise: str = ""
) -> None:
    """Write all files, or none if one exists."""
    there = [to / name for name in files if os.path.lexists(to / name)]
    if there and not force:
        raise VerbError(
            *(f"{path} exists already" for path in there),
            f"nothing is written: remove them or name another directory with --to{otherwise}",
        )
    for name, content in files.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
