"""Find what a command line means: the configuration, the record, a drone by any of its ids, names to complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from provisioner.cli.options import Exit, VerbError, Where
from provisioner.formatting import sanitize
from provisioner.model import DroneId

if TYPE_CHECKING:
    import yaml

    from provisioner.store.reader import Reader

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_CONFIG_DEPTH = 50
"""As for the strict loader."""
MAX_NAMED = 8
MAX_COMPLETIONS = 200

CONFIG_PATHS = (
    Path("provisioner.yaml"),
    Path("site_configs/provisioner.yaml"),
    Path("/etc/provisioner/provisioner.yaml"),
)
"""Where a configuration is looked for when none is named."""


def config_path(where: Where) -> Path:
    """Return the configuration file that is meant. Raises :class:`VerbError` when there is none."""
    if where.config is not None:
        if where.config.is_dir():
            raise VerbError(f"{where.config} is a directory, not a configuration: name the file in it")
        if not where.config.is_file():
            raise VerbError(f"no configuration at {where.config}")
        return where.config
    for path in CONFIG_PATHS:
        if path.is_file():
            return path
    raise VerbError(
        "no configuration found: looked for " + ", ".join(map(str, CONFIG_PATHS)),
        "name it with --config PATH or PROVISIONER_CONFIG",
    )


def store_path(where: Where) -> Path:
    """Return the path of the record: ``--store``, else what the configuration says."""
    if where.store is not None:
        return where.store
    try:
        config = config_path(where)
    except VerbError as none:
        raise VerbError(*none.lines, "or name the record with --store PATH or PROVISIONER_STORE") from None
    return _store_path_in(config)


def _store_path_in(config: Path) -> Path:
    """Return ``store.path`` of a configuration, without the strict loader, which is for ``run`` and ``check``."""
    import yaml

    try:
        with config.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1).decode("utf-8-sig")
        if len(text) > MAX_CONFIG_BYTES or not _is_shallow(text):
            raise _refused(str(config), "too large or nested too deeply for a configuration")
        tree = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except UnicodeDecodeError:
        raise VerbError(f"{config}: not UTF-8", code=Exit.UNMET) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{config}:{mark.line + 1}:{mark.column + 1}" if mark else str(config)
        raise _refused(at, getattr(error, "problem", None) or "not YAML") from None
    path = _value(_value(tree, "store"), "path")
    if path is None or path.tag != "tag:yaml.org,2002:str" or not path.value:
        raise VerbError(f"{config}: no store.path in it; `provisioner check` says more", code=Exit.UNMET)
    return config.parent / Path(path.value).expanduser()


def _refused(at: str, problem: str) -> VerbError:
    return VerbError(f"{at}: {problem}", "`provisioner check` says more", code=Exit.UNMET)


def _is_shallow(text: str) -> bool:
    """Return True if ``text`` is safe to compose: PyYAML's C code recurses and overflows the stack where it is deep."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_CONFIG_DEPTH:
            return False
    return True


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of ``key`` in a mapping, or in what it merges (``<<``).

    Each node is visited once: merges of merges multiply.
    """
    import yaml

    seen: set[int] = set()
    ahead: list[yaml.Node] = [node] if isinstance(node, yaml.MappingNode) else []
    while ahead:
        node = ahead.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            ahead += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            values: dict[str, yaml.Node] = {
                name.value: value for name, value in node.value if isinstance(name, yaml.ScalarNode)
            }
            if key in values:
                return values[key]
            ahead += [values["<<"]] if "<<" in values else []
    return None


def open_record(where: Where) -> Reader:
    """Open the record for reading. Raises :class:`VerbError` if there is none, ``StoreError`` if it is unusable."""
    path = store_path(where)
    if not path.exists():
        advice = "`provisioner run` makes it; --store PATH or PROVISIONER_STORE names another"
        raise VerbError(f"no record at {path}", advice)
    if path.is_dir():
        raise VerbError(f"{path} is a directory, not a record")
    from provisioner.store.reader import Reader

    return Reader(path)


# ----------------------------------------------------------------------------------------------------- drones and sites


def find_drone(reader: Reader, any_id: str) -> DroneId:
    """Return the drone of an id, a remote id or a slot name. Raises :class:`VerbError` that names the candidates."""
    found = reader.find(any_id) if any_id.strip() else []
    if len(found) == 1:
        return found[0]
    if found:
        raise VerbError(f"{sanitize(any_id, 80)} means {len(found)} drones: {named(found)}")
    near = _similar_ids(reader, any_id)
    candidates = f"; nearest: {named(near)}" if near else ""
    raise VerbError(f"no drone is known by {sanitize(any_id, 80) or 'an empty id'}{candidates}")


def _similar_ids(reader: Reader, any_id: str) -> list[str]:
    drones = reader.drones(ended=None)
    ids = [i for d in drones for i in (d.id, d.remote_id, d.slot, d.site_slot) if i]
    containing = [i for i in ids if any_id and any_id in i][:3]
    return containing or get_close_matches(any_id[:200], ids, n=3, cutoff=0.5)


def require_known_sites(reader: Reader, sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first of ``sites`` that is neither configured nor has had a drone.

    Before the first tick the record does not tell what is configured.
    """
    views = reader.views() if sites else None
    if views is None:
        return
    for site in sites:
        if site not in views.policy.sites and not reader.drones(ended=None, sites=[site], limit=1):
            raise unknown_site(site, sorted({*views.policy.sites, *(drone.site for drone in reader.drones())}))


def unknown_site(name: str, known: Sequence[str]) -> VerbError:
    """Return the error for a site that is not on record."""
    near = get_close_matches(name[:200], known, n=1)
    instead = f"did you mean `{near[0]}`?" if near else f"known: {named(known) or 'none'}"
    return VerbError(f"no site `{sanitize(name, 80)}` on record; {instead}")


def named(ids: Sequence[str]) -> str:
    """Return the first of many ids, and how many more there are."""
    shown = ", ".join(sanitize(i, 80) for i in ids[:MAX_NAMED])
    return shown + (f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else "")


# ----------------------------------------------------------------------------------------------------- shell completion


def _completing(names: Callable[[Reader], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = []
        with suppress(Exception):  # no record, no configuration: then there is nothing to complete
            config, store = (Path(str(path)) if (path := ctx.params.get(key)) else None for key in ("config", "store"))
            found = [name for name in names(open_record(Where(config, store))) if name.startswith(incomplete)]
        return found[:MAX_COMPLETIONS]

    return complete


def _class_ids(reader: Reader) -> list[str]:
    views = reader.views()
    return [c.id for c in views.overlay.view.classes] if views and views.overlay.view else []


complete_live_drones = _completing(lambda reader: [drone.id for drone in reader.drones()])
complete_drones = _completing(
    lambda reader: [d.id for d in (*reader.drones(), *reader.drones(ended=True, limit=MAX_COMPLETIONS))]
)
complete_sites = _completing(lambda reader: sorted(views.policy.sites) if (views := reader.views()) else ())
complete_types = _completing(lambda reader: [str(t.key) for t in views.types] if (views := reader.views()) else ())
complete_classes = _completing(_class_ids)
