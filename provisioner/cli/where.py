"""Find the configuration and the record, without building the configuration where the record alone will do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.cli.exits import Exit, Failure
from provisioner.cli.forms import Where

if TYPE_CHECKING:
    from provisioner.store import Reader

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
    """``store.path`` of a configuration, by a light look: the strict loader is for ``run`` and ``check``."""
    import yaml

    try:
        tree = yaml.load(config.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except UnicodeDecodeError:
        raise Failure(f"{config}: not UTF-8", code=Exit.UNMET) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{config}:{mark.line + 1}:{mark.column + 1}" if mark else str(config)
        said = getattr(error, "problem", None) or "not YAML"
        raise Failure(f"{at}: {said}", "`provisioner check` says more", code=Exit.UNMET) from None
    section = tree.get("store") if isinstance(tree, dict) else None
    path = section.get("path") if isinstance(section, dict) else None
    if not isinstance(path, str) or not path:
        raise Failure(f"{config}: no store.path in it; `provisioner check` says more", code=Exit.UNMET)
    return config.parent / Path(path).expanduser()


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
