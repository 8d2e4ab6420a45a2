"""Loading of the configuration: every file is read and checked to its end before anything is refused."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ValidationError

from provisioner.config import ConfigError, OverlayConfig, Problem, Settings, SiteConfig, StoreConfig
from provisioner.config.messages import choices, missing_mapping, report_errors
from provisioner.config.models import BlockingSection, ControllerFile, HeadroomSection, SiteFile, TypeSection
from provisioner.config.strict_yaml import Steps, YamlDocument, read
from provisioner.config.units import Secret, SecretUnreadableError, format_duration, format_gpus
from provisioner.interfaces import OverlayFactory, SiteFactory
from provisioner.loader import AdapterBrokenError, AdapterUnknownError, overlay_adapter, site_adapter
from provisioner.model import WHOLE_GPU, DroneType, Headroom, Policy, Reserve, SitePolicy

M = TypeVar("M", bound=BaseModel)

DRONE_STARTUP_S = 120.0
"""From the start of a drone's script to its first match: it joins, checks its GPUs, and waits for the negotiator."""
_CONTROLLER_KEYS = set(ControllerFile.model_fields)
_SITE_KEYS = set(SiteFile.model_fields)


def load(path: Path, *, root: Path | None = None, connects: bool = True) -> Settings:
    """Return the configuration that begins at controller file ``path``.

    Relative paths in a file are taken from the file's own directory; with ``root``, all but the ``sites`` patterns are
    taken from there instead (store, queue, drones and secrets of a trial run in a directory of its own). With
    ``connects=False``, for a simulation, adapters need not be installed, nor their options be complete.

    Raises:
        ConfigError: every problem in every file, in order.
    """
    reading = _ConfigReader(root, connects)
    settings = reading.controller(path, read(path))
    problems = reading.problems()
    if settings is None or problems:
        raise ConfigError(problems)
    return settings


def load_site(path: Path) -> SiteConfig:
    """Return the configuration of one site from its file alone. Raises :class:`ConfigError`."""
    reading = _ConfigReader(None)
    site = reading.site(path, read(path))
    if problems := reading.problems():
        raise ConfigError(problems)
    return _site_config(site)


def check(path: Path, *, root: Path | None = None) -> list[Problem]:
    """Return every problem of the configuration at ``path``: a controller file with its sites, or one site file.

    Settings that are valid but cannot work now, such as an expired token, are problems too.
    """
    reading = _read(path, root)
    return [*reading.problems(), *reading.failures]


def warnings(path: Path, *, root: Path | None = None) -> list[Problem]:
    """Return what is valid in the configuration at ``path``, as for :func:`check`, but probably not intended."""
    return _read(path, root).warnings


def _read(path: Path, root: Path | None) -> _ConfigReader:
    reading = _ConfigReader(root)
    document = read(path)
    if _is_site_file(document):
        reading.site(path, document)
    else:
        reading.controller(path, document)
    return reading


def _is_site_file(document: YamlDocument) -> bool:
    keys = set(document.tree)
    return len(keys & _SITE_KEYS) > len(keys & _CONTROLLER_KEYS)


# ------------------------------------------------------------------------------------- what an adapter's options may do


@runtime_checkable
class JudgesTypes(Protocol):
    """Options of an adapter that also check the drone types of their site."""

    def misfits(self, types: Sequence[DroneType]) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Yield what does not go together in the site's file, each with the message and its repair.

        The place is given as the keys that lead there from the top of the file: ``("options", "types", "a100")``,
        ``("types", "a100", "gpus")``.
        """
        ...


@runtime_checkable
class KeepsLife(Protocol):
    """Options of an adapter whose drones live for less than the walltime of their type."""

    def kept_life_s(self, walltime_s: float, grace_s: float) -> float:
        """Return how much less, in addition to the grace that every drone reserves for its jobs."""
        ...


@runtime_checkable
class HasDoubts(Protocol):
    """Options of an adapter that also check this host."""

    def doubts(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Yield what would not work on this host: the keys from the options on, and the message.

        The controller may run on another host, so these are warnings. Must be quick, without a call to the site.
        """
        ...


@runtime_checkable
class HasFailures(Protocol):
    """Options of an adapter that can be valid and certain to fail now: an expired token."""

    def failures(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Yield keys from the options on, and the message.

        `provisioner check` fails for it. The controller starts all the same: a secret can be renewed while it runs.
        """
        ...


@runtime_checkable
class JudgesHost(Protocol):
    """Options of an adapter whose drones run on this host, and that know which types never fit it."""

    def unfit(self, types: Sequence[DroneType]) -> Iterable[tuple[str, str]]:
        """Yield the names of types that never fit this host, each with what is short.

        Must be quick, without starting another program. The controller starts all the same: it may run on a larger
        host.
        """
        ...


def placing_options(config: type[BaseModel]) -> list[str]:
    """Return the names of the options that the adapter marks as defining where its drones are.

    The mark is ``json_schema_extra={"places_drones": True}``, or ``"shared"`` where sites tell their drones apart in
    one place.
    """
    return [name for name in config.model_fields if _place_mark(config, name)]


def _place_mark(config: type[BaseModel], name: str) -> object:
    extra = config.model_fields[name].json_schema_extra
    return extra.get("places_drones") if isinstance(extra, dict) else None


# -------------------------------------------------------------------------------------------------------------- reading


class _UnusedOptions(BaseModel):
    """The options of an adapter that is not loaded."""


@dataclass(slots=True)
class _ReadSite:
    """One site file as far as it could be understood."""

    path: Path
    document: YamlDocument
    model: SiteFile | None = None
    options: BaseModel | None = None


@dataclass(slots=True)
class _ConfigReader:
    """One pass over a controller file and its site files."""

    root: Path | None
    connects: bool = True
    documents: list[YamlDocument] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    failures: list[Problem] = field(default_factory=list)
    """Settings that are valid but cannot work now. The controller starts all the same."""

    def problems(self) -> list[Problem]:
        return [
            problem
            for document in self.documents
            for problem in sorted(dict.fromkeys(document.problems), key=lambda p: (p.line, p.col))
        ]

    def warn(self, document: YamlDocument, at: Steps, message: str) -> None:
        position = document.value_position(at)
        self.warnings.append(Problem(document.file, position.line, position.col, f"warning: {message}"))

    def controller(self, path: Path, document: YamlDocument) -> Settings | None:
        self.documents.append(document)
        if not document.is_mapping:
            return None
        if _is_site_file(document):
            position = document.key_position(("site",))
            document.complain(position, "this is a site file: name the controller file that lists it")
            return None
        model = self.validated(document, ControllerFile, (), document.tree, path)
        overlay = self.options(document, ("overlay",), overlay_adapter, path)
        sites = [self.site(found, read(found)) for found in self.site_files(path, document)]
        models = [site.model for site in sites if site.model]
        _check_distinct_names([site.document for site in sites])
        _check_distinct_places([(s.document, s.model.adapter, s.options) for s in sites if s.model and s.options])
        if model is None:
            return None
        if overlay is not None:
            _check_store_path(document, model.store.path, overlay)
        if len(models) == len(sites):
            _check_headroom(document, model, models)
        for site in sites:
            if site.model is not None:
                self.check_policy_limits(site.document, site.model, model)
        if self.problems() or overlay is None:
            return None
        return self.settings(path, model, overlay, sites)

    def site(self, path: Path, document: YamlDocument) -> _ReadSite:
        self.documents.append(document)
        site = _ReadSite(path, document)
        if not document.is_mapping:
            return site
        if not _is_site_file(document) and set(document.tree) & _CONTROLLER_KEYS:
            position = document.key_position(("controller",))
            document.complain(position, "this is a controller file, not a site file: exclude it from `sites`")
            return site
        site.model = self.validated(document, SiteFile, (), document.tree, path)
        site.options = self.options(document, (), site_adapter, path)
        if site.model is not None:
            _check_site_limits(document, site.model)
            self.check_grace(document, site.model)
            if site.options is not None:
                types = [
                    _drone_type(site.model, name, section, site.options) for name, section in site.model.types.items()
                ]
                self.check_types(document, site.options, types)
        return site

    def site_files(self, path: Path, document: YamlDocument) -> list[Path]:
        """Return the files that ``sites`` names, each once, without the controller file itself."""
        found: dict[Path, None] = {}
        patterns = document.tree.get("sites")
        for n, pattern in enumerate(patterns if isinstance(patterns, list) else []):
            if not isinstance(pattern, str):
                continue
            matches = _matches(pattern, path.parent)
            if not matches:
                document.complain_at(("sites", n), f"`{pattern}`: no file matches in {path.parent.absolute()}")
            sites = [match for match in matches if not _is_same_file(match, path)]
            if matches and not sites:
                document.complain_at(("sites", n), f"`{pattern}` matches only this file")
            found.update(dict.fromkeys(sites))
        return list(found)

    def validated(self, document: YamlDocument, model: type[M], at: Steps, tree: object, path: Path) -> M | None:
        context = {"root": (self.root or path.parent).absolute()}
        try:
            return model.model_validate_json(json.dumps(tree), strict=True, context=context)
        except ValidationError as error:
            report_errors(document, error, model, at)
        except Exception as error:  # an adapter's own validator may raise anything
            document.complain(document.key_position(at), _adapter_failed(error))
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
        except AdapterUnknownError as error:
            document.complain_at((*at, "adapter"), f"{error}: {choices(name, error.known)}")
            return None
        except AdapterBrokenError as error:
            document.complain_at((*at, "adapter"), str(error))
            return None
        if "options" not in section and any(field.is_required() for field in config.model_fields.values()):
            document.complain(document.key_position((*at, "adapter")), missing_mapping("options", config))
            return None
        given, below = section.get("options", {}), (*at, "options")
        if not isinstance(given, dict):
            return None
        options = self.validated(document, config, below, given, path)
        if options is not None:
            self.check_options(document, below, options)
            for steps, text in _placeholders(below, given):
                self.warn(document, steps, f"`{text}` is a placeholder: write the real name")
        return options

    # --------------------------------------------------------------------------------------------------------- checks

    def check_options(self, document: YamlDocument, at: Steps, options: BaseModel) -> None:
        """Warn of unreadable secrets, and ask the options themselves what does not work here and now."""
        for steps, message in _unreadable_secrets(at, options):  # warnings: the controller may run as another user
            self.warn(document, steps, message)
        try:
            if isinstance(options, HasDoubts):
                for steps, message in options.doubts():
                    self.warn(document, (*at, *steps), message)
        except Exception as error:  # an adapter's own code may raise anything
            self.warn(document, at, _adapter_failed(error))
        try:
            if isinstance(options, HasFailures):
                for steps, message in options.failures():
                    position = document.value_position((*at, *steps))
                    self.failures.append(Problem(document.file, position.line, position.col, message))
        except Exception as error:
            self.warn(document, at, _adapter_failed(error))

    def check_types(self, document: YamlDocument, options: BaseModel, types: Sequence[DroneType]) -> None:
        """Ask the adapter's options whether they and the site's types go together."""
        try:
            if isinstance(options, JudgesTypes):
                for steps, message in options.misfits(types):
                    document.complain(document.key_position(steps), message)
        except Exception as error:  # an adapter's own code may raise anything
            document.complain(document.key_position(("options",)), _adapter_failed(error))
        try:
            if isinstance(options, JudgesHost):
                for name, lack in options.unfit(types):
                    position = document.key_position(("types", name))
                    message = f"`{name}` can never start: {lack}. Make it smaller"
                    self.failures.append(Problem(document.file, position.line, position.col, message))
        except Exception as error:
            self.warn(document, ("options",), _adapter_failed(error))

    def check_grace(self, document: YamlDocument, site: SiteFile) -> None:
        """Warn if a drone that uses its grace would be stopped again before it is over."""
        stop_s, grace_s = site.timeouts.stopping, site.timeouts.grace
        if grace_s and stop_s <= grace_s:
            at = ("timeouts", "stopping") if ("timeouts", "stopping") in document.values else ("timeouts", "grace")
            stop, grace = format_duration(stop_s), format_duration(grace_s)
            self.warn(
                document,
                at,
                f"`stopping` ({stop}) is not longer than `grace` ({grace}): drones are stopped again before it is over",
            )

    def check_policy_limits(self, document: YamlDocument, site: SiteFile, controller: ControllerFile) -> None:
        """Refuse types beyond the limits of all sites; warn of limits without effect because a lower one applies."""
        policy, limits, above = controller.policy, site.limits, "is above the policy's limit for all sites"
        _check_type_gpus(document, site, policy.max_gpus, "policy.max_gpus")
        if limits.max_drones > policy.max_drones:
            self.warn(document, ("limits", "max_drones"), f"`max_drones` {above} ({policy.max_drones})")
        if policy.max_gpus is not None and limits.max_gpus is not None and limits.max_gpus > policy.max_gpus:
            self.warn(document, ("limits", "max_gpus"), f"`max_gpus` {above} ({format_gpus(policy.max_gpus)})")
        for name, shape in site.types.items():
            if shape.max_drones is not None and shape.max_drones > limits.max_drones:
                at = ("types", name, "max_drones")
                self.warn(document, at, f"`max_drones` of the type is above the site's ({limits.max_drones})")

    # ------------------------------------------------------------------------------------------------------- settings

    def settings(self, path: Path, model: ControllerFile, overlay: BaseModel, sites: list[_ReadSite]) -> Settings:
        configs = tuple(_site_config(site) for site in sites)
        policy = model.policy
        return Settings(
            path=path.absolute(),
            controller=model.controller,
            store=StoreConfig(**_by_field(StoreConfig, model.store)),
            overlay=OverlayConfig(adapter=model.overlay.adapter, options=overlay),
            sites=configs,
            policy=Policy(
                **_by_field(Policy, policy)
                | {
                    "sites": {site.name: site.policy for site in configs},
                    "headroom": tuple(map(_headroom, policy.headroom)),
                }
            ),
            interval_s=policy.interval,
            active_interval_s=policy.active_interval,
            carbon_g_per_kwh=policy.carbon,
            warnings=tuple(self.warnings),
        )


def _by_field(target: type, *sections: BaseModel) -> dict[str, Any]:
    """Return the settings of ``sections`` that dataclass ``target`` has a field for, by the names of its fields.

    A field has the name of its YAML key with the unit as a suffix: ``booting`` is ``booting_s``, ``memory`` is
    ``memory_mib``, and ``max_gpus`` is ``max_gpu_milli``.
    """
    settings = {key: value for section in sections for key, value in section}
    keys = {each.name: re.sub(r"_(s|mib|w)$", "", each.name).replace("gpu_milli", "gpus") for each in fields(target)}
    return {name: settings[key] for name, key in keys.items() if key in settings}


def _site_config(site: _ReadSite) -> SiteConfig:
    assert site.model is not None and site.options is not None
    model, options = site.model, site.options
    return SiteConfig(
        name=model.site,
        adapter=model.adapter,
        options=options,
        types=_drone_types(model, options),
        policy=SitePolicy(
            **_by_field(SitePolicy, model, model.limits, model.timeouts, model.owner)
            | {"blocking": tuple(map(_reserve, model.blocking)), "idle_timeout_s": model.timeouts.idle}
        ),
        path=site.path.absolute(),
    )


def _headroom(section: HeadroomSection) -> Headroom:
    from_h, to_h = section.hours or (0, 24)
    return Headroom(**_by_field(Headroom, section) | {"site": section.site or "", "from_h": from_h, "to_h": to_h})


def _reserve(section: BlockingSection) -> Reserve:
    return Reserve(**_by_field(Reserve, section))


def _drone_types(site: SiteFile, options: BaseModel) -> tuple[DroneType, ...]:
    return tuple(_drone_type(site, name, section, options) for name, section in site.types.items())


def _drone_type(site: SiteFile, name: str, section: TypeSection, options: BaseModel) -> DroneType:
    """Return the drone type ``name`` of the site.

    The node of a drone is not known yet, so the drone reserves for its own free GPUs the most that any node of the site
    reserves, and never more than the drone has.
    """
    gpus = section.gpus // WHOLE_GPU

    def kept(all_of_it: int, per_gpu: Iterable[int]) -> int:
        return min(max(per_gpu, default=0), all_of_it // gpus) if gpus else 0

    walltime_s = section.walltime or 0.0
    return DroneType(
        **_by_field(DroneType, section)
        | {
            "site": site.site,
            "name": name,
            "walltime_s": walltime_s,
            "margin_s": _margin_s(walltime_s, site.timeouts.grace, options) if walltime_s else 0.0,
            "kept_cpus": kept(section.cpus, (b.cpus for b in site.blocking)),
            "kept_memory_mib": kept(section.memory, (b.memory for b in site.blocking)),
            "kept_disk_mib": kept(section.disk, (b.disk for b in site.blocking)),
            "ad": dict(section.ad),
        }
    )


def _margin_s(walltime_s: float, grace_s: float, options: BaseModel) -> float:
    """Return the part of a drone's walltime that no job gets."""
    start_s = min(DRONE_STARTUP_S, walltime_s / 10)
    kept_s = options.kept_life_s(walltime_s, grace_s) if isinstance(options, KeepsLife) else 0.0
    return start_s + grace_s + kept_s


# -------------------------------------------------------------------------------- checks across values, sections, files


def _adapter_failed(error: Exception) -> str:
    return f"the adapter failed on its options: {type(error).__name__}: {error}"


def _check_distinct_names(documents: Sequence[YamlDocument]) -> None:
    """Refuse two sites of one name."""
    first: dict[str, YamlDocument] = {}
    for document in documents:
        name = document.tree.get("site")
        if not isinstance(name, str):
            continue
        if name in first:
            place = f"{first[name].file}:{first[name].value_position(('site',)).line}"
            document.complain_at(("site",), f"duplicate site `{name}` (first defined in {place})")
        first.setdefault(name, document)


def _check_distinct_places(sites: Sequence[tuple[YamlDocument, str, BaseModel]]) -> None:
    """Refuse two sites with their drones in one place: each would stop the other's drones as strays.

    ``sites``: document, adapter and its options. Two sites are one place if all of their placing options are the same.
    """
    first: dict[tuple[object, ...], YamlDocument] = {}
    for document, adapter, options in sites:
        keys = placing_options(type(options))
        if not keys or all(_place_mark(type(options), key) == "shared" for key in keys):
            continue
        place = (adapter, *(repr(getattr(options, key)) for key in keys))
        if place in first:
            message = f"`{keys[0]}` is also that of {first[place].file}: give each site a place of its own"
            document.complain_at(("options", keys[0]), message)
        first.setdefault(place, document)


def _check_store_path(document: YamlDocument, store: Path, overlay: BaseModel) -> None:
    """Refuse a store that is not a file of its own."""
    if os.path.isdir(store):  # false where access is denied; Path.is_dir raises there
        document.complain_at(("store", "path"), f"`path`: {store} is a directory: name a file in it")
    for name, value in overlay:
        if isinstance(value, Path) and value == store:
            document.complain_at(
                ("overlay", "options", name), f"`{name}` is the same file as `store.path`: name another file"
            )


def _check_headroom(document: YamlDocument, controller: ControllerFile, sites: Sequence[SiteFile]) -> None:
    """Refuse headroom for unknown sites or drone types."""
    types = {site.site: set(site.types) for site in sites}
    for n, headroom in enumerate(controller.policy.headroom):
        at: Steps = ("policy", "headroom", n)
        if headroom.site is not None and headroom.site not in types:
            known = ", ".join(f"`{name}`" for name in sorted(types))
            document.complain_at((*at, "site"), f"unknown site `{headroom.site}`: there are {known}")
            continue
        there = types[headroom.site] if headroom.site else set().union(*types.values())
        for m, name in enumerate(headroom.types):
            if name not in there:
                where = f"site `{headroom.site}` has" if headroom.site else "there are"
                known = ", ".join(f"`{each}`" for each in sorted(there))
                document.complain_at((*at, "types", m), f"unknown drone type `{name}`: {where} {known}")


def _check_site_limits(document: YamlDocument, site: SiteFile) -> None:
    """Refuse types beyond the limits of their own site."""
    _check_type_gpus(document, site, site.limits.max_gpus, "limits.max_gpus")
    grace_s = site.timeouts.grace
    for name, shape in site.types.items():
        if shape.walltime is not None and shape.walltime <= grace_s:
            document.complain_at(
                ("types", name, "walltime"),
                f"`walltime` must be longer than `timeouts.grace` ({format_duration(grace_s)}): drones would leave at "
                "once",
            )


def _check_type_gpus(document: YamlDocument, site: SiteFile, max_gpus: int | None, limit: str) -> None:
    for name, shape in site.types.items():
        if max_gpus is not None and shape.gpus > max_gpus:
            document.complain_at(
                ("types", name, "gpus"),
                f"`gpus`: a drone has more than `{limit}` ({format_gpus(max_gpus)}) and can never start: raise the "
                f"limit to `{format_gpus(shape.gpus)}`",
            )


def _unreadable_secrets(at: Steps, options: BaseModel) -> Iterator[tuple[Steps, str]]:
    for name, value in options:
        if isinstance(value, Secret):
            try:
                value.read()
            except SecretUnreadableError as error:
                yield (*at, name), f"`{name}`: {error}"
        elif isinstance(value, BaseModel):
            yield from _unreadable_secrets((*at, name), value)


_PLACEHOLDER = re.compile(r"(?<![A-Za-z0-9-])example\.(?:org|com|net)(?![A-Za-z0-9-]|\.[A-Za-z0-9])", re.IGNORECASE)


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


def _matches(pattern: str, directory: Path) -> list[Path]:
    if "\0" in pattern:
        return []
    return sorted(
        directory / match for match in glob.glob(os.path.expanduser(pattern), root_dir=directory, recursive=True)
    )


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
