"""What only shows when several values, sections or files are seen together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import BaseModel

from provisioner.config import Problem
from provisioner.config.models import PolicySection, SiteFile
from provisioner.config.strict_yaml import Document, Steps
from provisioner.config.units import Secret, SecretUnreadable, format_duration, format_gpus
from provisioner.model import DroneType


@runtime_checkable
class JudgesTypes(Protocol):
    """Options of an adapter that also judge the drone types of their site."""

    def misfits(self, types: Sequence[DroneType]) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """What of the site's file does not go together: where it stands, as the keys that lead there from the top of
        the file (``("options", "types", "a100")``, ``("types", "a100", "gpus")``), and the message, with the repair."""
        ...


@runtime_checkable
class KeepsLife(Protocol):
    """Options of an adapter whose drones live for less than the walltime of their type."""

    def kept_life_s(self, walltime_s: float, grace_s: float) -> float:
        """Return how much less, beside the grace that every drone keeps for its jobs."""
        ...


@runtime_checkable
class HasDoubts(Protocol):
    """Options of an adapter that also look at this host."""

    def doubts(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """What would not work here: where it stands, as the keys that lead there from the options, and the message. The
        controller may run on another host, so these are warnings. Cheap, and without a call to the site."""
        ...


@runtime_checkable
class HasFailures(Protocol):
    """Options of an adapter that can tell what certainly fails now, though it is well written: an expired token."""

    def failures(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Return keys from the options on, and the message. `provisioner check` fails for it. The controller starts all
        the same: a secret can be renewed while it runs."""
        ...


@runtime_checkable
class JudgesHost(Protocol):
    """Options of an adapter whose drones run on this host, and that can tell which types will never fit it."""

    def unfit(self, types: Sequence[DroneType]) -> Iterable[tuple[str, str]]:
        """Return names of types that this host can never hold, each with what is short. Quick: no other program is
        started. The controller starts all the same, for it may run on a larger host."""
        ...


def distinct_names(documents: Sequence[Document]) -> None:
    """Each site has a name of its own."""
    first: dict[str, Document] = {}
    for document in documents:
        name = document.tree.get("site")
        if not isinstance(name, str):
            continue
        if name in first:
            other = first[name]
            where = f"{other.file}:{other.value_spot(('site',)).line}"
            document.complain_at(("site",), f"site `{name}` is in {where} already: rename one of them")
        first.setdefault(name, document)


def distinct_places(sites: Sequence[tuple[Document, str, BaseModel]]) -> None:
    """No two sites keep their drones in one place: each would take the other's for strays, and stop them.

    ``sites``: document, adapter and its options. An adapter marks the options that say where its drones are with
    ``json_schema_extra={"places_drones": True}``, or ``"shared"`` where its sites tell their drones apart in one place;
    two sites are one place if all of these are the same.
    """
    first: dict[tuple[object, ...], Document] = {}
    for document, adapter, options in sites:
        keys = placing_options(type(options))
        if not keys or all(_mark(type(options), key) == "shared" for key in keys):
            continue
        place = (adapter, *(repr(getattr(options, key)) for key in keys))
        if place in first:
            message = f"`{keys[0]}` is that of {first[place].file} too: give each site a place of its own"
            document.complain_at(("options", keys[0]), message)
        first.setdefault(place, document)


def placing_options(config: type[BaseModel]) -> list[str]:
    """Names of the options that the adapter marks as saying where its drones are."""
    return [name for name in config.model_fields if _mark(config, name)]


def _mark(config: type[BaseModel], name: str) -> object:
    extra = config.model_fields[name].json_schema_extra
    return extra.get("places_drones") if isinstance(extra, dict) else None


def types_can_run(document: Document, site: SiteFile) -> None:
    """No type is beyond the limits of its own site."""
    cap_milli, grace_s = site.limits.max_gpus, site.timeouts.grace
    for name, shape in site.types.items():
        if cap_milli is not None and shape.gpus > cap_milli:
            document.complain_at(
                ("types", name, "gpus"),
                f"`gpus`: one drone has more than `limits.max_gpus` of the site ({format_gpus(cap_milli)}) and could "
                f"never start: raise the limit to `{format_gpus(shape.gpus)}`",
            )
        if shape.walltime is not None and shape.walltime <= grace_s:
            document.complain_at(
                ("types", name, "walltime"),
                f"`walltime` is not longer than `timeouts.grace` ({format_duration(grace_s)}): a drone would leave at "
                f"once; lengthen it",
            )


def options_fit_types(document: Document, options: BaseModel, types: Sequence[DroneType]) -> None:
    """The adapter's options and the site's types go together, if the options can tell."""
    if not isinstance(options, JudgesTypes):
        return
    try:
        for steps, message in options.misfits(types):
            document.complain(document.key_spot(steps), message)
    except Exception as error:  # an adapter's own code may raise anything: that is its fault, and said so
        spot = document.key_spot(("options",))
        document.complain(spot, f"the adapter failed on its options: {type(error).__name__}: {error}")


def types_fit_policy(document: Document, site: SiteFile, policy: PolicySection) -> None:
    """No type is beyond the limits for all sites."""
    for name, shape in site.types.items():
        if policy.max_gpus is not None and shape.gpus > policy.max_gpus:
            document.complain_at(
                ("types", name, "gpus"),
                f"`gpus`: one drone has more than `policy.max_gpus` for all sites ({format_gpus(policy.max_gpus)}) and "
                f"could never start: raise that to `{format_gpus(shape.gpus)}`",
            )


def headroom_has_a_place(document: Document, policy: PolicySection, sites: Sequence[SiteFile]) -> None:
    """Headroom names sites and drone types that there are."""
    types = {site.site: set(site.types) for site in sites}
    for n, headroom in enumerate(policy.headroom):
        at: Steps = ("policy", "headroom", n)
        if headroom.site is not None and headroom.site not in types:
            known = ", ".join(f"`{name}`" for name in sorted(types))
            document.complain_at((*at, "site"), f"`{headroom.site}`: no site of this name; there are {known}")
            continue
        there = types[headroom.site] if headroom.site else set().union(*types.values())
        for m, name in enumerate(headroom.types):
            if name not in there:
                where = f"site `{headroom.site}` has" if headroom.site else "there are"
                known = ", ".join(f"`{each}`" for each in sorted(there))
                document.complain_at((*at, "types", m), f"`{name}`: no drone type of this name; {where} {known}")


def apart(document: Document, store: Path, overlay: BaseModel) -> None:
    """The record is a file of its own."""
    if os.path.isdir(store):  # false for what may not be looked at, where Path.is_dir raises
        document.complain_at(("store", "path"), f"`path`: {store} is a directory: name a file in it")
    for name, value in overlay:
        if isinstance(value, Path) and value == store:
            document.complain_at(
                ("overlay", "options", name), f"`{name}` is the same file as `store.path`: give it one of its own"
            )


def beyond_policy(document: Document, site: SiteFile, policy: PolicySection) -> Iterator[Problem]:
    """Limits that never come to bear since a smaller one does: no harm, but hardly meant."""
    limits, all_sites = site.limits, "is above the policy's for all sites"
    if limits.max_drones > policy.max_drones:
        yield _warning(document, ("limits", "max_drones"), f"`max_drones` {all_sites} ({policy.max_drones})")
    if policy.max_gpus is not None and limits.max_gpus is not None and limits.max_gpus > policy.max_gpus:
        yield _warning(document, ("limits", "max_gpus"), f"`max_gpus` {all_sites} ({format_gpus(policy.max_gpus)})")
    for name, shape in site.types.items():
        if shape.max_drones is not None and shape.max_drones > limits.max_drones:
            at = ("types", name, "max_drones")
            yield _warning(document, at, f"`max_drones` of the type is above the site's ({limits.max_drones})")


def asked_again_within_grace(document: Document, site: SiteFile) -> Iterator[Problem]:
    """A drone that uses its grace would be asked to stop once more before that is over."""
    stop_s, grace_s = site.timeouts.stopping, site.timeouts.grace
    if grace_s and stop_s <= grace_s:
        at = ("timeouts", "stopping") if ("timeouts", "stopping") in document.values else ("timeouts", "grace")
        stop, grace = format_duration(stop_s), format_duration(grace_s)
        text = (
            f"`stopping` ({stop}) is not longer than `grace` ({grace}): a drone is asked again before its grace is over"
        )
        yield _warning(document, at, text)


def unreadable_secrets(document: Document, at: Steps, options: BaseModel) -> Iterator[Problem]:
    """Secrets that cannot be read here and now; the controller may run as another user, so this is a warning."""
    for name, value in options:
        if isinstance(value, Secret):
            try:
                value.read()
            except SecretUnreadable as error:
                yield _warning(document, (*at, name), f"`{name}`: {error}")
        elif isinstance(value, BaseModel):
            yield from unreadable_secrets(document, (*at, name), value)


_PLACEHOLDER = re.compile(r"(?<![A-Za-z0-9-])example\.(?:org|com|net)(?![A-Za-z0-9-]|\.[A-Za-z0-9])", re.IGNORECASE)


def placeholders(document: Document, at: Steps, value: object) -> Iterator[Problem]:
    """Warn of host names that no host has (RFC 2606): a file of `site_configs` that was not adapted yet."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from placeholders(document, (*at, key), each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from placeholders(document, (*at, index), each)
    elif isinstance(value, str) and _PLACEHOLDER.search(value):
        yield _warning(document, at, f"`{' '.join(value.split())[:80]}` is a placeholder: write the real name")


def doubts(document: Document, at: Steps, options: BaseModel) -> Iterator[Problem]:
    """What the adapter itself doubts will work on this host."""
    if not isinstance(options, HasDoubts):
        return
    try:
        for steps, message in options.doubts():
            yield _warning(document, (*at, *steps), message)
    except Exception as error:  # an adapter's own code may raise anything: that is its fault, and said so
        yield _warning(document, at, f"the adapter failed on its options: {type(error).__name__}: {error}")


def failures(document: Document, at: Steps, options: BaseModel) -> Iterator[Problem]:
    """Yield what the adapter itself knows to fail now."""
    if not isinstance(options, HasFailures):
        return
    try:
        for steps, message in options.failures():
            spot = document.value_spot((*at, *steps))
            yield Problem(document.file, spot.line, spot.col, message)
    except Exception as error:  # an adapter's own code may raise anything: that is its fault, and said so
        yield _warning(document, at, f"the adapter failed on its options: {type(error).__name__}: {error}")


def types_unfit(document: Document, options: BaseModel, types: Sequence[DroneType]) -> Iterator[Problem]:
    """Yield types that this host can never hold."""
    if not isinstance(options, JudgesHost):
        return
    try:
        for name, lack in options.unfit(types):
            spot = document.key_spot(("types", name))
            yield Problem(document.file, spot.line, spot.col, f"`{name}` can never start: {lack}. Make it smaller")
    except Exception as error:  # an adapter's own code may raise anything: that is its fault, and said so
        yield _warning(document, ("options",), f"the adapter failed on its options: {type(error).__name__}: {error}")


def _warning(document: Document, at: Steps, message: str) -> Problem:
    spot = document.value_spot(at)
    return Problem(document.file, spot.line, spot.col, f"warning: {message}")
