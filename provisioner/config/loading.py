"""Loading of the configuration: every file is read and checked to its end before anything is refused."""

from __future__ import annotations

import glob
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from provisioner import mig
from provisioner.config import ConfigError, OverlayConfig, Problem, Settings, SiteConfig
from provisioner.config.accounts import account_problem, secret_files
from provisioner.config.credentials import credentials_of
from provisioner.config.messages import choices, fields_of, missing_mapping, report_errors
from provisioner.config.models import (
    ControllerFile,
    SiteFile,
    WebSection,
    placing_options,
)
from provisioner.config.sections import as_settings
from provisioner.config.strict_yaml import Steps, YamlDocument, parse, read
from provisioner.descriptions import credential_trouble
from provisioner.durations import format_duration
from provisioner.formatting import gpus
from provisioner.interfaces import (
    OptionFinding,
    OverlayFactory,
    SiteFactory,
    SupportsDroneAccount,
    SupportsHostWarnings,
    SupportsKeptLife,
    SupportsOneUser,
    SupportsTypeConflicts,
    SupportsTypesTooLarge,
)
from provisioner.loader import (
    AdapterBrokenError,
    AdapterUnknownError,
    overlay_adapter,
    site_adapter,
)
from provisioner.model import (
    NVIDIA,
    WHOLE_GPU,
    DroneType,
    LowUseAction,
    LowUsePolicy,
    Sharing,
)
from provisioner.store.database import Place
from provisioner.values import define, factory

M = TypeVar("M", bound=BaseModel)

DRONE_STARTUP_S = 120.0
"""From the start of a drone's script to its first match: it joins, checks its GPUs, and waits for the negotiator."""
_CONTROLLER_FILE_KEYS = set(ControllerFile.model_fields)
_SITE_FILE_KEYS = set(SiteFile.model_fields)


def load(
    path: Path,
    *,
    root: Path | None = None,
    connects: bool = True,
    texts: Mapping[str, str] | None = None,
) -> Settings:
    """Return the configuration that begins at controller file ``path``.

    Relative paths in a file are taken from the file's own directory; with ``root``, all but the ``sites`` patterns are
    taken from there instead (store, queue, drones and secrets of a trial run in a directory of its own). With
    ``connects=False``, for a simulation, adapters need not be installed, nor their options be complete. ``texts``: the
    files, as :func:`load_with_texts` returns them, in place of those on disk.

    Raises:
        ConfigError: every problem in every file, in order.
    """
    reader = _ConfigReader(root, connects)
    if texts is not None:
        first, *others = texts
        reader.texts = {path: texts[first]} | {path.parent / name: texts[name] for name in others}
    return reader.settings(path)


def load_with_texts(path: Path, root: Path | None = None) -> tuple[Settings, dict[str, str]]:
    """Return a configuration, and its texts by their names from its directory, the controller file first.

    Raises :class:`ConfigError` as :func:`load`.
    """
    reader = _ConfigReader(root)
    settings = reader.settings(path)
    return settings, {os.path.relpath(d.file, path.parent): d.text for d in reader.documents}


def load_web(path: Path) -> tuple[Place, WebSection]:
    """Return the place of the store and the settings of the web service. Raises :class:`ConfigError`.

    Sites and adapters are not read: what is wrong there does not concern the service.
    """
    reader = _ConfigReader(None)
    document = read(path)
    reader.documents.append(document)
    model = (
        reader.validated(document, ControllerFile, (), document.tree, path)
        if document.is_mapping
        else None
    )
    if model is None:
        raise ConfigError(reader.problems())
    return model.store.place(model.controller), model.web


def load_site(path: Path) -> SiteConfig:
    """Return the configuration of one site from its file alone. Raises :class:`ConfigError`."""
    reader = _ConfigReader(None)
    site = reader.site(path, read(path))
    if problems := reader.problems():
        raise ConfigError(problems)
    return _site_config(site)


class Checked(NamedTuple):
    """The findings in a configuration."""

    problems: list[Problem]
    """With settings that are valid but cannot work now, such as an expired token."""
    warnings: list[Problem]
    """About settings that are valid, but probably not intended."""
    settings: Settings | None
    """None for a site file, or with mistakes."""


def check(path: Path, *, root: Path | None = None) -> Checked:
    """Check the configuration at ``path``: a controller file with its sites, or one site file."""
    reader = _ConfigReader(root)
    document = read(path)
    settings = None
    if _is_site_file(document):
        reader.site(path, document)
    else:
        settings = reader.controller(path, document)
    failures = [failure for document in reader.documents for failure in document.failures]
    return Checked([*reader.problems(), *failures], reader.warnings(), settings)


def _is_site_file(document: YamlDocument) -> bool:
    keys = set(document.tree)
    return len(keys & _SITE_FILE_KEYS) > len(keys & _CONTROLLER_FILE_KEYS)


class _UnusedOptions(BaseModel):
    """The options of an adapter that is not loaded."""


@define
class _ReadSite:
    """One site file as far as it could be understood."""

    path: Path
    document: YamlDocument
    model: SiteFile | None = None
    options: BaseModel | None = None
    types: tuple[DroneType, ...] = ()


@define
class _ConfigReader:
    """One pass over a controller file and its site files."""

    root: Path | None
    connects: bool = True
    documents: list[YamlDocument] = factory(list)
    texts: Mapping[Path, str] | None = None
    """The files, the controller file first; None: they are read."""

    def document(self, path: Path) -> YamlDocument:
        """Return a file that was read, or given as a text."""
        if self.texts is None:
            return read(path)
        document = YamlDocument(str(path))
        parse(self.texts[path], document)
        return document

    def settings(self, path: Path) -> Settings:
        """Return the configuration of a controller file. Raises :class:`ConfigError`."""
        found = self.controller(path, self.document(path))
        if found is None:
            raise ConfigError(self.problems())
        return found

    def problems(self) -> list[Problem]:
        return [problem for document in self.documents for problem in document.in_order()]

    def warnings(self) -> list[Problem]:
        return [warning for document in self.documents for warning in document.warnings]

    def controller(self, path: Path, document: YamlDocument) -> Settings | None:
        self.documents.append(document)
        if not document.is_mapping:
            return None
        if _is_site_file(document):
            document.complain_at_key(
                ("site",), "this is a site file: name the controller file that lists it"
            )
            return None
        model = self.validated(document, ControllerFile, (), document.tree, path)
        overlay = self.options(document, ("overlay",), overlay_adapter, path)
        if model is not None:
            _check_credentials(document, ("web",), model.web)
            for n, service in enumerate(model.services):
                _check_credentials(document, ("services", n), service)
        found = _site_files(path, document) if self.texts is None else [*self.texts][1:]
        sites = [self.site(each, self.document(each)) for each in found]
        _check_distinct_names([site.document for site in sites])
        _check_distinct_places(sites)
        if model is None:
            return None
        if overlay is not None:
            _check_store_path(document, model.store.path, overlay)
            _check_low_use(document, model)
            if self.connects:
                _check_accounts(model, overlay, sites)
        read_models = [site.model for site in sites if site.model]
        if len(read_models) == len(sites):
            _check_headroom(document, model, read_models)
            _check_services(document, model, sites, connects=self.connects)
        for site in sites:
            if site.model is not None:
                most = model.policy.settings.max_gpu_milli
                _check_type_gpus(site.document, site.model, most, "policy.max_gpus")
        if self.problems() or overlay is None:
            return None
        configs = tuple(map(_site_config, sites))
        return Settings(
            path=path.absolute(),
            controller=model.controller,
            store=model.store,
            overlay=OverlayConfig(adapter=model.overlay.adapter, options=overlay),
            sites=configs,
            policy=replace(
                model.policy.settings,
                sites={site.name: site.policy for site in configs},
                services=tuple(each.settings for each in model.services),
            ),
            web=model.web,
            services=model.services,
            balancer=model.balancer,
            ha=model.ha,
            warnings=tuple(self.warnings()),
        )

    def site(self, path: Path, document: YamlDocument) -> _ReadSite:
        self.documents.append(document)
        site = _ReadSite(path, document)
        if not document.is_mapping:
            return site
        if not _is_site_file(document) and set(document.tree) & _CONTROLLER_FILE_KEYS:
            message = "this is a controller file, not a site file: exclude it from `sites`"
            document.complain_at_key(("controller",), message)
            return site
        site.model = self.validated(document, SiteFile, (), document.tree, path)
        site.options = self.options(document, (), site_adapter, path)
        if site.model is not None:
            _check_site(document, site.model)
            if site.options is not None:
                site.types = _drone_types(site.model, site.options)
                if isinstance(site.options, SupportsTypeConflicts):
                    _report(document.complain_at_key, (), site.options.type_conflicts, site.types)
                if isinstance(site.options, SupportsTypesTooLarge):
                    _report(document.warn, (), site.options.types_too_large, site.types)
        return site

    def validated(
        self, document: YamlDocument, model: type[M], at: Steps, tree: object, path: Path
    ) -> M | None:
        context = {"root": (self.root or path.parent).absolute()}
        try:
            return model.model_validate_json(json.dumps(tree), strict=True, context=context)
        except ValidationError as error:
            report_errors(document, error, model, at)
        except Exception as error:  # an adapter's own validator may raise anything
            document.complain_at_key(at, _adapter_failed(error))
        return None

    def options(
        self,
        document: YamlDocument,
        at: Steps,
        adapter: Callable[[str], SiteFactory | OverlayFactory],
        path: Path,
    ) -> BaseModel | None:
        """Return the options beside the key ``adapter`` at ``at``, validated by the adapter's own model."""
        if not self.connects:
            return _UnusedOptions()
        section = document.tree if not at else document.tree.get(str(at[0]))
        name = section.get("adapter") if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(name, str):
            return None
        try:
            config: type[BaseModel] = adapter(name).Config
        except (AdapterUnknownError, AdapterBrokenError) as error:
            instead = (
                f": {choices(name, error.known)}" if isinstance(error, AdapterUnknownError) else ""
            )
            document.complain_at((*at, "adapter"), f"{error}{instead}")
            return None
        if "options" not in section and any(
            field.is_required() for field in config.model_fields.values()
        ):
            document.complain_at_key((*at, "adapter"), missing_mapping("options", config))
            return None
        given = section.get("options", {})
        below = (*at, "options")
        options = (
            self.validated(document, config, below, given, path)
            if isinstance(given, dict)
            else None
        )
        if options is not None:
            if isinstance(options, SupportsHostWarnings):
                _report(document.warn, below, options.host_warnings)
            _check_credentials(document, below, options)
            for steps, text in _placeholders(below, given):
                document.warn(steps, f"`{text}` is a placeholder: write the real name")
        return options


def _site_files(path: Path, document: YamlDocument) -> list[Path]:
    found: dict[Path, None] = {}
    patterns = document.tree.get("sites")
    for n, pattern in enumerate(patterns if isinstance(patterns, list) else []):
        if not isinstance(pattern, str):
            continue
        names = (
            []
            if "\0" in pattern
            else glob.glob(os.path.expanduser(pattern), root_dir=path.parent, recursive=True)
        )
        matches = sorted(path.parent / name for name in names)
        if not matches:
            document.complain_at(
                ("sites", n), f"`{pattern}`: no file matches in {path.parent.absolute()}"
            )
        sites = [match for match in matches if os.path.realpath(match) != os.path.realpath(path)]
        if matches and not sites:
            document.complain_at(("sites", n), f"`{pattern}` matches only this file")
        found.update(dict.fromkeys(sites))
    return list(found)


def _adapter_failed(error: Exception) -> str:
    return f"the adapter failed on its options: {type(error).__name__}: {error}"


def _report(
    report: Callable[[Steps, str], None],
    at: Steps,
    find: Callable[..., Iterable[OptionFinding]],
    *arguments: Sequence[DroneType],
) -> None:
    """Report what an optional method of an adapter's options finds below ``at``, and if it fails."""
    try:
        for steps, message in find(*arguments):
            report((*at, *steps), message)
    except Exception as error:  # an adapter's own code may raise anything
        report(at or ("options",), _adapter_failed(error))


def _check_credentials(document: YamlDocument, below: Steps, options: BaseModel) -> None:
    """Fail for each credential that is dead, and warn of each that ends soon or that this account cannot read."""
    now = time.time()
    try:
        for each in credentials_of(options):
            dead = each.is_dead(now) and not each.doubtful  # the controller may run as another user
            if each.doubtful and any(each.problem in known.message for known in document.warnings):
                continue
            if text := credential_trouble(each, now):
                (document.fail if dead else document.warn)((*below, *each.name.split(".")), text)
    except Exception as error:  # an adapter's own code may raise anything
        document.fail(below, _adapter_failed(error))


def _site_config(site: _ReadSite) -> SiteConfig:
    assert site.model is not None and site.options is not None
    model = site.model
    return SiteConfig(
        model.site, model.adapter, site.options, site.types, model.policy, site.path.absolute()
    )


def _drone_types(site: SiteFile, options: BaseModel) -> tuple[DroneType, ...]:
    """Return the drone types of the site.

    The node of a drone is not known yet, so the drone reserves for its own free GPUs the most that
    any node of the site reserves, and never more than the drone has.
    """
    found = []
    policy = site.policy
    for shape in site.shapes.values():
        margin_s = 0.0
        # no job gets this part of it; an adapter may need more than the grace at the end
        if shape.walltime_s:
            margin_s = min(DRONE_STARTUP_S, shape.walltime_s / 10) + policy.grace_s
            if isinstance(options, SupportsKeptLife):
                margin_s += options.kept_life_s(shape.walltime_s, policy.grace_s)
        gpus = shape.gpu_milli // WHOLE_GPU
        if gpus and policy.blocking:
            kept = policy.blocking
            shape = replace(
                shape,
                kept_cpus=min(max(each.cpus for each in kept), shape.cpus // gpus),
                kept_memory_mib=min(
                    max(each.memory_mib for each in kept), shape.memory_mib // gpus
                ),
                kept_disk_mib=min(max(each.disk_mib for each in kept), shape.disk_mib // gpus),
            )
        found.append(
            replace(
                shape, margin_s=margin_s, glidein_site=site.glidein_site, dcgm_jobs=site.dcgm_jobs
            )
        )
    return tuple(found)


def _check_distinct_names(documents: Sequence[YamlDocument]) -> None:
    first: dict[str, YamlDocument] = {}
    for document in documents:
        name = document.tree.get("site")
        if not isinstance(name, str):
            continue
        if name in first:
            place = f"{first[name].file}:{first[name].value_position(('site',)).line}"
            document.complain_at(("site",), f"duplicate site `{name}` (first defined in {place})")
        first.setdefault(name, document)


def _check_distinct_places(sites: Sequence[_ReadSite]) -> None:
    """Refuse two sites with their drones in one place: each would stop the other's drones as orphans.

    Two sites are in one place if all of their placing options are the same.
    """
    first: dict[tuple[object, ...], str] = {}
    for site in sites:
        marks = placing_options(type(site.options)) if site.options is not None else {}
        if site.model is None or set(marks.values()) <= {"shared"}:
            continue
        place = (site.model.adapter, *(repr(getattr(site.options, key)) for key in marks))
        if place in first:
            key = next(iter(marks))
            message = f"`{key}` is also that of {first[place]}: give each site a place of its own"
            site.document.complain_at(("options", key), message)
        first.setdefault(place, site.document.file)


def _check_accounts(
    controller: ControllerFile, overlay: BaseModel, sites: Sequence[_ReadSite]
) -> None:
    """Refuse drones whose account can read a secret of the controller, unless the site says so by name.

    Drones on this host have the controller's own account unless the options of the site say
    otherwise (:class:`~provisioner.interfaces.SupportsDroneAccount`).
    """
    if isinstance(overlay, SupportsOneUser) and not overlay.runs_jobs_of_others():
        return
    known = [overlay, controller.web, *controller.services]
    known += [site.options for site in sites if site.options is not None]
    secrets = [path for options in known for path in secret_files(options)]
    for site in sites:
        if (
            site.model is None
            or site.options is None
            or getattr(site.options, "same_account", False)
        ):
            continue
        key = "adapter"
        account = None
        if isinstance(site.options, SupportsDroneAccount):
            key, account = site.options.drone_account()
        if account is None and getattr(site_adapter(site.model.adapter), "on_this_host", False):
            account = ""
        problem = (
            account_problem(account, controller.store.path, secrets) if account is not None else ""
        )
        if problem:
            remedy = (
                f"Set `{key}` to another account, or `same_account: true` if all jobs are yours"
            )
            site.document.complain_at_key(
                ("options",), f"{problem}: every job could read its tokens. {remedy}"
            )


def _check_store_path(document: YamlDocument, store: Path | None, overlay: BaseModel) -> None:
    if store is None:
        return
    if os.path.isdir(store):  # false where access is denied; Path.is_dir raises there
        document.complain_at(
            ("store", "path"), f"`path`: {store} is a directory: name a file in it"
        )
    for name, value in overlay:
        if isinstance(value, Path) and value == store:
            message = f"`{name}` is the same file as `store.path`: name another file"
            document.complain_at(("overlay", "options", name), message)


def _check_low_use(document: YamlDocument, controller: ControllerFile) -> None:
    """Warn of settings of ``policy.low_use`` that cannot work."""
    low = as_settings(LowUsePolicy, controller.policy.low_use)
    keep_s = controller.store.keep
    at = ("policy", "low_use")
    written = [
        key for key in fields_of(type(controller.policy.low_use)) if (*at, key) in document.values
    ]
    if low.action is LowUseAction.NONE:
        if "action" not in written and (key := next(iter(written), "")):
            document.warn(
                (*at, key), f"`{key}` has no effect without `action`: write `action: warn`"
            )
        return
    if low.window_s > keep_s:
        keep = format_duration(keep_s)
        own = "window" in written
        window = "`window`" if own else f"`window` ({format_duration(low.window_s)})"
        message = f"{window} is longer than `store.keep` ({keep}), and older runs are deleted: write at most `{keep}`"
        document.warn((*at, "window") if own else at, message)


def _check_headroom(
    document: YamlDocument, controller: ControllerFile, sites: Sequence[SiteFile]
) -> None:
    types = {site.site: set(site.types) for site in sites}
    for n, headroom in enumerate(controller.policy.headroom):
        at: Steps = ("policy", "headroom", n)
        if headroom.site is not None and headroom.site not in types:
            known = ", ".join(f"`{name}`" for name in sorted(types))
            document.complain_at(
                (*at, "site"), f"unknown site `{headroom.site}`: there are {known}"
            )
            continue
        there = types[headroom.site] if headroom.site else set().union(*types.values())
        for m, name in enumerate(headroom.types):
            if name not in there:
                where = f"site `{headroom.site}` has" if headroom.site else "there are"
                known = ", ".join(f"`{each}`" for each in sorted(there))
                document.complain_at(
                    (*at, "types", m), f"unknown drone type `{name}`: {where} {known}"
                )


def _check_runs_servers(document: YamlDocument, site: SiteFile, name: str) -> None:
    if not getattr(site_adapter(site.adapter), "runs_servers", True):
        document.complain_at_key(
            ("types", name, "server"),
            f"drones of adapter `{site.adapter}` run no inference servers: remove `server`",
        )


def _check_services(
    document: YamlDocument,
    controller: ControllerFile,
    sites: Sequence[_ReadSite],
    *,
    connects: bool,
) -> None:
    """Refuse types with a server of an unknown service, and warn of a service that no type has a server of."""
    names = [each.settings.name for each in controller.services]
    known = f"there are {', '.join(f'`{name}`' for name in sorted(names))}"
    served = set()
    for site in sites:
        for name, shape in site.model.shapes.items() if site.model else ():
            if shape.server is None:
                continue
            served.add(shape.server.service)
            if shape.server.service not in names:
                remedy = known if names else "add it to `services` in the controller file"
                site.document.complain_at(
                    ("types", name, "server", "service"),
                    f"unknown service `{shape.server.service}`: {remedy}",
                )
            if connects and site.model and site.options is not None:
                _check_runs_servers(site.document, site.model, name)
    for n, service in enumerate(names):
        if service not in served:
            problem = f"no drone type has a server of service `{service}`"
            document.warn(
                ("services", n, "name"),
                f"{problem}: add `server: {{service: {service}, ...}}` to a type, or remove it",
            )
    if connects and names and find_spec("aiohttp") is None:
        document.complain_at_key(
            ("services",),
            "Python module `aiohttp` is missing: install the extra `services` (docs/how-to/install.md#extras)",
        )
    if controller.balancer and not names:
        document.warn(
            ("balancer",), "`balancer` has no effect without `services`: add them, or remove it"
        )


def _check_site(document: YamlDocument, site: SiteFile) -> None:
    """Refuse types beyond the limits of their own site, and warn of stops that are repeated within the grace."""
    policy = site.policy
    _check_type_gpus(document, site, policy.max_gpu_milli, "limits.max_gpus")
    if site.mig:
        _check_mig(document, site)
    grace_s = policy.grace_s
    stopping_s = policy.stopping_s
    for name, shape in site.shapes.items():
        if shape.walltime_s and shape.walltime_s <= grace_s:
            least = f"must be longer than `timeouts.grace` ({format_duration(grace_s)})"
            document.complain_at(
                ("types", name, "walltime"), f"`walltime` {least}: drones would leave at once"
            )
    if grace_s and stopping_s <= grace_s:
        at = (
            ("timeouts", "stopping")
            if ("timeouts", "stopping") in document.values
            else ("timeouts", "grace")
        )
        times = f"`stopping` ({format_duration(stopping_s)}) is not longer than `grace` ({format_duration(grace_s)})"
        document.warn(at, f"{times}: drones are stopped again before it is over")


def _check_mig(document: YamlDocument, site: SiteFile) -> None:
    """Warn of types that find other instances than their shares promise."""
    if not any(shape.gpu_milli and shape.vendor == NVIDIA for shape in site.shapes.values()):
        document.warn(
            ("mig",), "no drone type has GPUs of NVIDIA: remove `mig`, or correct `vendor`"
        )
    layouts = [entry.layout for entry in site.mig]
    for name, shape in site.shapes.items():
        if shape.sharing is not Sharing.MIG:
            continue
        found = [layout for layout in layouts if len(layout) == shape.shares]
        if not found:
            remedy = "` or `".join(map(str, sorted({len(layout) for layout in layouts} - {1})))
            remedy = f"write `shares: {remedy}`, or correct `mig`" if remedy else "correct `mig`"
            message = f"no layout of `mig` has {shape.shares} instances: {remedy}"
            document.warn(("types", name, "shares"), message)
        elif all(len({profile.removesuffix("+me") for profile in layout}) > 1 for layout in found):
            problem = f"each share counts as an equal part, and {mig.counted(found[0])} are unequal"
            remedy = "write a type for each profile, without `sharing`"
            document.warn(("types", name, "sharing"), f"{problem}: {remedy}")


def _check_type_gpus(
    document: YamlDocument, site: SiteFile, max_gpus: int | None, limit: str
) -> None:
    for name, shape in site.shapes.items():
        if max_gpus is not None and shape.gpu_milli > max_gpus:
            problem = f"a drone has more than `{limit}` ({gpus(max_gpus)}) and can never start"
            remedy = f"raise the limit to `{gpus(shape.gpu_milli)}`"
            document.complain_at(("types", name, "gpus"), f"`gpus`: {problem}: {remedy}")


_PLACEHOLDER = re.compile(
    r"(?<![A-Za-z0-9-])example\.(?:org|com|net)(?![A-Za-z0-9-]|\.[A-Za-z0-9])", re.IGNORECASE
)


def _placeholders(at: Steps, value: object) -> Iterator[tuple[Steps, str]]:
    """Yield the host names reserved for examples (RFC 2606): a file of `site_configs` that was not adapted yet."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _placeholders((*at, key), each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _placeholders((*at, index), each)
    elif isinstance(value, str) and _PLACEHOLDER.search(value):
        yield at, " ".join(value.split())[:80]
