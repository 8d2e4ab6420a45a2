"""From files to :class:`Settings`: every file is read and judged to its end before anything is refused."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from provisioner.config import ConfigErrors, OverlaySpec, Problem, Settings, SiteSpec, StoreSpec, together
from provisioner.config import strict_yaml as yaml
from provisioner.config.explain import complain, missing_mapping
from provisioner.config.models import BlockingSection, ControllerFile, HeadroomSection, SiteFile, TypeSection
from provisioner.config.nearest import choices
from provisioner.config.strict_yaml import Document, Steps
from provisioner.config.together import KeepsLife
from provisioner.interfaces import OverlayFactory, SiteFactory
from provisioner.loader import AdapterBroken, AdapterUnknown, overlay_adapter, site_adapter
from provisioner.model import WHOLE_GPU, DroneType, Headroom, Policy, Reserve, SitePolicy

M = TypeVar("M", bound=BaseModel)


def load(path: Path, *, root: Path | None = None, connects: bool = True) -> Settings:
    """The configuration that begins at controller file ``path``.

    Relative paths in a file are taken from the file's own directory; with ``root``, all but the ``sites`` patterns are
    taken from there instead (record, queue, drones and secrets of a trial run in a directory of its own). For one that
    only thinks of its sites and never ``connects``, adapters need not be installed, nor their options be complete.

    Raises:
        ConfigErrors: with every mistake in every file, in order.
    """
    reading = _Reading(root, connects)
    settings = reading.controller(path, yaml.read(path))
    problems = reading.problems()
    if settings is None or problems:
        raise ConfigErrors(problems)
    return settings


def check(path: Path, *, root: Path | None = None) -> list[Problem]:
    """Every mistake in the configuration at ``path``: a controller file with all its sites, or one site file alone; and
    what is written well but cannot work now, such as an expired token."""
    reading = _read(path, root)
    return [*reading.problems(), *reading.failures]


def warnings(path: Path, *, root: Path | None = None) -> list[Problem]:
    """What is valid in the configuration at ``path``, as for :func:`check`, but probably not meant."""
    return _read(path, root).warnings


def _read(path: Path, root: Path | None) -> _Reading:
    reading = _Reading(root)
    document = yaml.read(path)
    if _is_site_file(document):
        reading.site(path, document)
    else:
        reading.controller(path, document)
    return reading


STARTS_WITHIN_S = 120.0
"""From the start of a drone's script to its first match: it joins, checks its GPUs, and the negotiator comes."""
_CONTROLLER_KEYS = set(ControllerFile.model_fields)
_SITE_KEYS = set(SiteFile.model_fields)


def _is_site_file(document: Document) -> bool:
    keys = set(document.tree)
    return len(keys & _SITE_KEYS) > len(keys & _CONTROLLER_KEYS)


class _Unread(BaseModel):
    """Stands for options that nobody looks at."""


@dataclass(slots=True)
class _Site:
    """One site file as far as it could be understood."""

    path: Path
    document: Document
    model: SiteFile | None = None
    options: BaseModel | None = None


@dataclass(slots=True)
class _Reading:
    """One pass over a controller file and its site files."""

    root: Path | None
    connects: bool = True
    documents: list[Document] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    failures: list[Problem] = field(default_factory=list)
    """Settings that are valid but cannot work now. The controller starts all the same."""

    def problems(self) -> list[Problem]:
        return [
            problem
            for document in self.documents
            for problem in sorted(dict.fromkeys(document.problems), key=lambda p: (p.line, p.col))
        ]

    # ------------------------------------------------------------------------------------------------------- files

    def controller(self, path: Path, document: Document) -> Settings | None:
        self.documents.append(document)
        if not document.is_mapping:
            return None
        if _is_site_file(document):
            document.complain(
                document.key_spot(("site",)),
                "this is a site file: name the controller file that lists it",
            )
            return None
        model = self.judged(document, ControllerFile, path)
        overlay = self.options(document, ("overlay",), overlay_adapter, path)
        sites = [self.site(found, yaml.read(found)) for found in self.site_files(path, document)]
        together.distinct_names([site.document for site in sites])
        together.distinct_places([(s.document, s.model.adapter, s.options) for s in sites if s.model and s.options])
        if model is None:
            return None
        if overlay is not None:
            together.apart(document, model.store.path, overlay)
        if all(site.model is not None for site in sites):
            together.headroom_has_a_place(document, model.policy, [site.model for site in sites if site.model])
        for site in sites:
            if site.model is not None:
                together.types_fit_policy(site.document, site.model, model.policy)
                self.warnings += together.beyond_policy(site.document, site.model, model.policy)
        if self.problems() or overlay is None:
            return None
        return self.settings(path, model, overlay, sites)

    def site(self, path: Path, document: Document) -> _Site:
        self.documents.append(document)
        site = _Site(path, document)
        if not document.is_mapping:
            return site
        if not _is_site_file(document) and set(document.tree) & _CONTROLLER_KEYS:
            document.complain(
                document.key_spot(("controller",)), "this is a controller file, not a site file: keep it out of `sites`"
            )
            return site
        site.model = self.judged(document, SiteFile, path)
        site.options = self.options(document, (), site_adapter, path)
        if site.model is not None:
            together.types_can_run(document, site.model)
            self.warnings += together.asked_again_within_grace(document, site.model)
            if site.options is not None:
                shapes = site.model.types.items()
                types = [_drone_type(site.model, name, written, site.options) for name, written in shapes]
                together.options_fit_types(document, site.options, types)
                self.failures += together.types_unfit(document, site.options, types)
        return site

    def site_files(self, path: Path, document: Document) -> list[Path]:
        """The files that ``sites`` names, each once, the controller file itself left out."""
        found: dict[Path, None] = {}
        patterns = document.tree.get("sites")
        for n, pattern in enumerate(patterns if isinstance(patterns, list) else []):
            if not isinstance(pattern, str):
                continue
            matches = _matches(pattern, path.parent)
            if not matches:
                document.complain_at(("sites", n), f"`{pattern}`: no file matches, seen from {path.parent.absolute()}")
            sites = [match for match in matches if not _same_file(match, path)]
            if matches and not sites:
                document.complain_at(("sites", n), f"`{pattern}` matches this file only")
            found.update(dict.fromkeys(sites))
        return list(found)

    # --------------------------------------------------------------------------------------------------- judging

    def judged(self, document: Document, model: type[M], path: Path) -> M | None:
        return _judged(document, model, (), document.tree, self.context(path))

    def context(self, path: Path) -> dict[str, Path]:
        return {"root": (self.root or path.parent).absolute()}

    def options(
        self,
        document: Document,
        at: Steps,
        adapter: Callable[[str], SiteFactory | OverlayFactory],
        path: Path,
    ) -> BaseModel | None:
        """The options beside the key ``adapter`` at ``at``, judged by the adapter's own model."""
        if not self.connects:
            return _Unread()
        section = document.tree if not at else document.tree.get(str(at[0]))
        name = section.get("adapter") if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(name, str):
            return None
        try:
            config: type[BaseModel] = adapter(name).Config
        except AdapterUnknown as error:
            document.complain_at((*at, "adapter"), f"{error}: {choices(name, error.known)}")
            return None
        except AdapterBroken as error:
            document.complain_at((*at, "adapter"), str(error))
            return None
        if "options" not in section and any(field.is_required() for field in config.model_fields.values()):
            document.complain(document.key_spot((*at, "adapter")), missing_mapping("options", config))
            return None
        given, where = section.get("options", {}), (*at, "options")
        if not isinstance(given, dict):
            return None
        options = _judged(document, config, where, given, self.context(path))
        if options is not None:
            self.warnings += together.unreadable_secrets(document, where, options)
            self.warnings += together.doubts(document, where, options)
            self.warnings += together.placeholders(document, where, given)
            self.failures += together.failures(document, where, options)
        return options

    # -------------------------------------------------------------------------------------------------- settings

    def settings(self, path: Path, model: ControllerFile, overlay: BaseModel, sites: list[_Site]) -> Settings:
        specs = tuple(_site_spec(site) for site in sites)
        written = model.policy
        return Settings(
            path=path.absolute(),
            controller=model.controller,
            store=StoreSpec(path=model.store.path, keep_s=model.store.keep, snapshots=model.store.snapshots),
            overlay=OverlaySpec(adapter=model.overlay.adapter, options=overlay),
            sites=specs,
            policy=Policy(
                idle_timeout_s=written.idle_timeout,
                idle_fixed=written.idle_fixed,
                max_drones=written.max_drones,
                max_gpu_milli=written.max_gpus,
                overlay_max_age_s=written.overlay_max_age,
                slot_max_age_s=written.slot_max_age,
                early_exit_window_s=written.early_exit_window,
                max_unhealthy_fraction=written.max_unhealthy_fraction,
                min_unhealthy=written.min_unhealthy,
                waiting_cost=written.waiting_cost,
                sites={spec.name: spec.policy for spec in specs},
                headroom=tuple(map(_headroom, written.headroom)),
            ),
            interval_s=written.interval,
            active_interval_s=written.active_interval,
            carbon_g_per_kwh=written.carbon,
            warnings=tuple(self.warnings),
        )


def _judged(document: Document, model: type[M], at: Steps, tree: object, context: dict[str, Path]) -> M | None:
    try:
        return model.model_validate_json(json.dumps(tree), strict=True, context=context)
    except ValidationError as error:
        complain(document, error, model, at)
    except Exception as error:  # an adapter's own validator may raise anything: that is its fault, and said so
        document.complain(document.key_spot(at), f"the adapter failed on its options: {type(error).__name__}: {error}")
    return None


def _site_spec(site: _Site) -> SiteSpec:
    assert site.model is not None and site.options is not None
    model, timeouts = site.model, site.model.timeouts
    return SiteSpec(
        name=model.site,
        adapter=model.adapter,
        options=site.options,
        types=tuple(_drone_type(model, name, written, site.options) for name, written in model.types.items()),
        policy=SitePolicy(
            site=model.site,
            enabled=model.enabled,
            max_drones=model.limits.max_drones,
            max_gpu_milli=model.limits.max_gpus,
            max_pending=model.limits.max_pending,
            max_starts_per_tick=model.limits.max_starts_per_tick,
            price=model.price,
            queue_when_full=model.queue_when_full,
            view_max_age_s=timeouts.view_max_age,
            poll_deadline_s=timeouts.poll_deadline,
            order_deadline_s=timeouts.order_deadline,
            order_confirm_s=timeouts.order_confirm,
            missing_s=timeouts.missing,
            queued_s=timeouts.queued,
            booting_s=timeouts.booting,
            joining_s=timeouts.joining,
            slot_loss_s=timeouts.slot_loss,
            draining_s=timeouts.draining,
            stopping_s=timeouts.stopping,
            grace_s=timeouts.grace,
            blocking=tuple(map(_reserve, model.blocking)),
            preempt_proactively=model.owner.preempt_proactively,
            min_runtime_s=model.owner.min_runtime,
            idle_timeout_s=timeouts.idle,
            idle_fixed=timeouts.idle_fixed,
        ),
        path=site.path.absolute(),
    )


def _headroom(written: HeadroomSection) -> Headroom:
    from_h, to_h = written.hours or (0, 24)
    return Headroom(
        name=written.name,
        gpu_milli=written.gpus,
        cpus=written.cpus,
        memory_mib=written.memory,
        disk_mib=written.disk,
        vram_mib=written.vram,
        count=written.count,
        site=written.site or "",
        types=written.types,
        from_h=from_h,
        to_h=to_h,
    )


def _reserve(written: BlockingSection) -> Reserve:
    return Reserve(
        nodes=written.nodes,
        cpus=written.cpus,
        memory_mib=written.memory,
        disk_mib=written.disk,
        when=written.when,
        release_after_s=written.release_after,
    )


def _drone_type(site: SiteFile, name: str, written: TypeSection, options: BaseModel) -> DroneType:
    """What a drone keeps for its own free GPUs is the most that any of its site's nodes keeps, and never more than the
    drone has: nobody knows yet on which node it will be."""
    gpus = written.gpus // WHOLE_GPU

    def kept(all_of_it: int, per_gpu: Iterable[int]) -> int:
        return min(max(per_gpu, default=0), all_of_it // gpus) if gpus else 0

    return DroneType(
        site=site.site,
        kept_cpus=kept(written.cpus, (b.cpus for b in site.blocking)),
        kept_memory_mib=kept(written.memory, (b.memory for b in site.blocking)),
        kept_disk_mib=kept(written.disk, (b.disk for b in site.blocking)),
        name=name,
        gpu_milli=written.gpus,
        cpus=written.cpus,
        memory_mib=written.memory,
        disk_mib=written.disk,
        vram_mib=written.vram,
        gpu_model=written.gpu_model,
        capability=written.capability,
        driver=written.driver,
        arch=written.arch,
        walltime_s=written.walltime or 0.0,
        margin_s=_margin_s(written.walltime, site.timeouts.grace, options) if written.walltime else 0.0,
        sharing=written.sharing,
        shares=written.shares,
        power_w=written.power,
        price=written.price,
        max_drones=written.max_drones,
        ad=dict(written.ad),
    )


def _margin_s(walltime_s: float, grace_s: float, options: BaseModel) -> float:
    """Return the part of a drone's walltime that no job gets."""
    start_s = min(STARTS_WITHIN_S, walltime_s / 10)
    kept_s = options.kept_life_s(walltime_s, grace_s) if isinstance(options, KeepsLife) else 0.0
    return start_s + grace_s + kept_s


def _matches(pattern: str, directory: Path) -> list[Path]:
    if "\0" in pattern:
        return []
    return sorted(
        directory / match for match in glob.glob(os.path.expanduser(pattern), root_dir=directory, recursive=True)
    )


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
