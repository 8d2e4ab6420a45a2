"""Adapters by entry point: found by name and loaded when needed, with a clear error if that fails."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from provisioner.interfaces import INTERFACE_VERSION, OverlayFactory, SiteFactory

SITES = "provisioner.sites"
OVERLAYS = "provisioner.overlays"
_OWN_PACKAGE = "adapters"
_WANTED = {SITES: ("poll", "start", "stop"), OVERLAYS: ("poll", "drain", "bootstrap")}
_KIND = {SITES: "site", OVERLAYS: "overlay"}


class AdapterUnknownError(LookupError):
    """No installed package offers an adapter of this name. ``known``: the names that are offered."""

    def __init__(self, group: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"no {_KIND[group]} adapter `{name}` is installed")
        self.name = name
        self.known = known


class AdapterBrokenError(Exception):
    """An installed adapter cannot be used; the message says why, and what to do."""


def adapter_names(group: str) -> tuple[str, ...]:
    """Return the names of the installed adapters of a group, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=group)}))


def site_adapter(name: str) -> SiteFactory:
    """Return the class of site adapter ``name``. Raises AdapterUnknownError, AdapterBrokenError."""
    return cast(SiteFactory, adapter(SITES, name))


def overlay_adapter(name: str) -> OverlayFactory:
    """Return the class of overlay adapter ``name``. Raises AdapterUnknownError, AdapterBrokenError."""
    return cast(OverlayFactory, adapter(OVERLAYS, name))


def is_shipped(group: str, name: str) -> bool:
    """Return whether adapter ``name`` comes with this distribution."""
    return any(_is_own(point) for point in entry_points(group=group, name=name))


def adapter(group: str, name: str) -> Any:
    """Return the class of an adapter of a group, as for :func:`site_adapter`."""
    places = sorted({point.value: point for point in entry_points(group=group, name=name)}.items())
    if not places:
        raise AdapterUnknownError(group, name, adapter_names(group))
    if len(places) > 1:
        values = " and ".join(value for value, _ in places)
        raise AdapterBrokenError(
            f"{_KIND[group]} adapter `{name}` is offered twice, by {values}: uninstall one of them"
        )
    return _checked(group, places[0][1])


def _checked(group: str, point: EntryPoint) -> Any:
    _refuse_shadow(point)
    what = f"{_KIND[group]} adapter `{point.name}` ({point.value})"
    try:
        adapter = point.load()
    except Exception as error:  # whatever a module may raise while it is imported
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ModuleNotFoundError):
            extra = _EXTRAS.get(error.name or "")
            if error.name == "aiohttp" and _is_own(point):
                extra = point.name  # several extras install it, each for the adapter of its name
            repair = (
                f": install the extra `{extra}` (docs/how-to/install.md#extras)" if extra else ""
            )
            why = f"Python module `{error.name}` is missing{repair}"
        raise AdapterBrokenError(f"{what} cannot be imported: {why}") from error
    version = getattr(adapter, "interface_version", 1)
    if version != INTERFACE_VERSION:
        raise AdapterBrokenError(
            f"{what} is for version {version} of the interface of adapters, this provisioner has version "
            f"{INTERFACE_VERSION}: install a release of the adapter for it"
        )
    config = getattr(adapter, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise AdapterBrokenError(f"{what} has no `Config`, a pydantic model of its options")
    if config.model_config.get("extra") != "forbid":
        raise AdapterBrokenError(
            f'{what}: its `Config` lets unknown options pass; it needs extra="forbid"'
        )
    lacking = [method for method in _WANTED[group] if not callable(getattr(adapter, method, None))]
    if lacking:
        raise AdapterBrokenError(f"{what} lacks the methods {', '.join(lacking)}")
    return adapter


_EXTRAS = {
    "classad2": "htcondor",
    "htcondor2": "htcondor",
    "asyncssh": "ssh",
    "pyslurm": "slurm-native",
}
"""Extras of this distribution that install a module."""


def _is_own(point: EntryPoint) -> bool:
    return point.module.partition(".")[0] == _OWN_PACKAGE


def _refuse_shadow(point: EntryPoint) -> None:
    """Raise if Python takes another package for ours: `adapters` is a common name."""
    if not _is_own(point):
        return
    ours = Path(__file__).resolve().parent.parent / _OWN_PACKAGE
    spec = find_spec(_OWN_PACKAGE)
    found = [
        Path(place).resolve() for place in (spec.submodule_search_locations if spec else None) or ()
    ]
    if ours not in found:
        other = str(found[0]) if found else "no package"
        raise AdapterBrokenError(
            f"adapter `{point.name}` lives in package `{_OWN_PACKAGE}` at {ours}, but Python finds {other} under that "
            f"name: uninstall or rename the other package, or start Python in another directory"
        )
