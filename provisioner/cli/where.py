"""Find the configuration and the record, without building the configuration where the record alone will do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.cli.exits import Exit, Failure
from provisioner.cli.forms import Where

if TYPE_CHECKING:
    import yaml

    from provisioner.store import Reader

_LARGEST_FILE = 4 * 1024 * 1024
_DEEPEST = 50
"""Bytes and levels of nesting that the strict loader takes, too."""

PLACES = (
    Path("provisioner.yaml"),
    Path("site_configs/provisioner.yaml"),
    Path("/etc/provisioner/provisioner.yaml"),
)
"""Where a configuration is looked for when none is named."""


def config_path(where: Where) -> Path:
    """The configuration file that is meant. Raises :class:`Failure` when there is none."""
    if where.config is not None:
        if where.config.is_dir():
            raise Failure(f"{where.config} is a directory, not a configuration: name the file in it")
        if not where.config.is_file():
            raise Failure(f"no configuration at {where.config}", code=Exit.FAILED)
        return where.config
    for place in PLACES:
        if place.is_file():
            return place
    raise Failure(
        "no configuration found: looked for " + ", ".join(map(str, PLACES)),
        "name it with --config PATH or PROVISIONER_CONFIG",
    )


def store_path(where: Where) -> Path:
    """The record that is meant: --store, else what the configuration says."""
    if where.store is not None:
        return where.store
    try:
        config = config_path(where)
    except Failure as none:
        raise Failure(*none.lines, "or name the record with --store PATH or PROVISIONER_STORE") from None
    return _path_in(config)


def _path_in(config: Path) -> Path:
    """Return ``store.path`` of a configuration, by a light poll: the strict loader is for ``run`` and ``check``."""
    import yaml

    try:
        with config.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1).decode("utf-8-sig")
        if len(text) > _LARGEST_FILE or not _is_shallow(text):
            raise _refused(str(config), "too large or nested too deeply for a configuration")
        tree = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except UnicodeDecodeError:
        raise Failure(f"{config}: not UTF-8", code=Exit.UNMET) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{config}:{mark.line + 1}:{mark.column + 1}" if mark else str(config)
        raise _refused(at, getattr(error, "problem", None) or "not YAML") from None
    path = _value(_value(tree, "store"), "path")
    if path is None or path.tag != "tag:yaml.org,2002:str" or not path.value:
        raise Failure(f"{config}: no store.path in it; `provisioner check` says more", code=Exit.UNMET)
    return config.parent / Path(path.value).expanduser()


def _refused(at: str, problem: str) -> Failure:
    return Failure(f"{at}: {problem}", "`provisioner check` says more", code=Exit.UNMET)


def _is_shallow(text: str) -> bool:
    """Return True if ``text`` is safe to compose: PyYAML's C code recurses and overflows the stack where it is deep."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            return False
    return True


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of ``key`` in a mapping, or in what it merges (``<<``). Visits each node once: merges of merges
    multiply."""
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
    """The record for reading. Raises :class:`Failure` if there is none, ``StoreError`` if it cannot be used."""
    path = store_path(where)
    if not path.exists():
        raise Failure(
            f"no record at {path}",
            "`provisioner run` makes it; --store PATH or PROVISIONER_STORE names another",
        )
    if path.is_dir():
        raise Failure(f"{path} is a directory, not a record")
    from provisioner.store.reader import SqlReader

    return SqlReader(path)
