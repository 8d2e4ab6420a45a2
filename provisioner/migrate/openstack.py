"""Options of an OpenStack site from TARDIS's OpenStack adapter: the login, and each type's request to Nova."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from provisioner.migrate.htcondor import COMMON
from provisioner.migrate.machine_types import MachineType
from provisioner.migrate.report import KeyReader
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

OptionValue = str | bool | Sequence[str] | dict[str, str]
Say = Callable[[int, str, str, str], None]
"""A method of ``ImportReport``: line, key, ours, text."""

_PASSWORD = ("username", "project_name", "user_domain_name", "project_domain_name")
"""Keys that accompany a password, with the same names as in clouds.yaml."""
_CREDENTIAL = ("application_credential_id", "application_credential_secret")
_NOT_COPIED = "a secret: not copied"
_NAME_OR_ID = re.compile(r"[^\s/,][^/,\n]{0,254}")
_CREDENTIAL_ID = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_URL = re.compile(r"(https?://)(?:[^@\s]*@)?([^\s?#@]+)")
_VOLUME = {"uuid", "source_type", "destination_type", "boot_index"}
_VOLUME_MAY = {"volume_size", "volume_type", "delete_on_termination"}
_MOST_NETWORKS, _MOST_GROUPS, _LARGEST_GIB = 8, 16, 1024**2
_GONE = {
    "user_data": "ours is made: the drone starts HTCondor itself. What yours prepares (mounts, a proxy) has to be in"
    " the image, or in a script that `setup` names; see docs/how-to/openstack.md",
    "personality": "files come with the drone; yours have to be in the image",
    "name": "a server has the name of its drone",
    "description": "a server has the name of its drone",
    "tags": "servers are found by tags of ours",
    "metadata": "not copied, as there may be secrets in it: write what is to stay under `metadata`",
    "adminPass": f"{_NOT_COPIED}; nobody logs in with one",
    "min_count": "each drone is one server",
    "max_count": "each drone is one server",
}
"""Keys of a server request that drones do not have, with their replacement."""


@dataclass(frozen=True, slots=True)
class _ImportedOption:
    """An imported option: its old place, its new name, and the message."""

    type: str
    line: int
    key: str
    name: str
    note: Say
    text: str


class OpenStackSiteImport:
    """Import of one site, type by type."""

    def __init__(self, section: KeyReader, ours: str, name: str) -> None:
        self.section, self.notes, self.ours, self.name = section, section.notes, f"{ours}: options", name
        self.flavors: dict[str, str] = {}
        self.per_type: dict[str, dict[str, OptionValue]] = {}
        self.taken: list[_ImportedOption] = []

    # --------------------------------------------------------------------------------------------------------- types

    def machine(self, machine: MachineType, given: KeyReader, ours: str) -> None:
        """Import the server request of one type; TARDIS passes its keys on to Nova."""
        self.per_type[machine.ours] = {}
        self._flavor(machine, given, f"{self.ours}.types.{machine.ours}.flavor")
        self._boot(machine, given)
        networks = given.peek("networks")
        if networks is not None and networks.text == "auto":
            given.take("networks")
            self.notes.converted(networks.line, given.name("networks"), "", "as the cloud sees fit: so without it, too")
        for theirs, name, read, what in (
            ("networks", "networks", _networks, "[networks, by name or id]"),
            ("security_groups", "security_groups", _groups, "[security groups, by name or id]"),
            ("key_name", "key_pair", _name, "key pair, by name"),
            ("availability_zone", "availability_zone", _name, "availability zone, by name"),
            ("config_drive", "config_drive", _switch, "true, or false"),
        ):
            setting = given.take(theirs)
            if setting is not None:
                self._option(machine, setting, given.name(theirs), name, read(setting), what)
        given.drop(_GONE)
        given.drop_rest("drones ask Nova for nothing of the kind")

    def _flavor(self, machine: MachineType, given: KeyReader, at: str) -> None:
        setting, key = given.take("flavorRef"), given.name("flavorRef")
        flavor = _reference(setting) if setting is not None else None
        self.flavors[machine.ours] = flavor or _blank("flavour, by name or id")
        if setting is not None and flavor is not None:
            text = "`provisioner check --live` compares it with the type, GPUs included"
            self.notes.converted(setting.line, key, at, text)
        else:
            line = given.line_of(setting)
            self.notes.needed(line, key, at, "write the flavour that servers of this type have")

    def _boot(self, machine: MachineType, given: KeyReader) -> None:
        """Import the image, or the volume that is created from it."""
        disks, key = given.take("block_device_mapping_v2"), given.name("block_device_mapping_v2")
        volume = _volume(disks) if disks is not None else None
        if disks is not None and volume is not None:
            given.drop({"imageRef": "servers boot from a volume, which names its image itself"})
            self._boot_volume(machine, disks.line, key, volume)
            return
        if disks is not None:
            self.notes.needed(
                disks.line,
                key,
                f"{self.ours}.types.{machine.ours}.boot_volume",
                "a server boots from its image, or from one volume that is made of it, and has no other: write"
                " `boot_volume`, or nothing if the flavour's disk will do",
            )
        setting = given.take("imageRef")
        where = setting if setting is not None else YamlValue(None, given.line)
        image = _reference(setting) if setting is not None else None
        self._option(machine, where, given.name("imageRef"), "image", image, "image, by name or id")

    def _boot_volume(self, machine: MachineType, line: int, key: str, volume: dict[str, YamlValue]) -> None:
        image, size, kind = volume["uuid"], volume.get("volume_size"), volume.get("volume_type")
        self._option(machine, image, f"{key}.uuid", "image", _reference(image), "image, by name or id")
        whole = _whole_gib(size) if size is not None else 0
        written = {"size": f"{whole} GiB" if whole else placeholder("size of the volume, as 40 GiB")}
        if kind is not None and kind.text:
            written["type"] = kind.text
        self.per_type[machine.ours]["boot_volume"] = written
        goes, name, text = volume.get("delete_on_termination"), "boot_volume", "a volume made from the image"
        note: Say = self.notes.converted
        if not whole:
            note, name, text = self.notes.needed, "boot_volume.size", "write how large the volume is, as `40 GiB`"
        elif goes is None or _switch(goes) is not True:
            note, text = self.notes.changed, "it is deleted with its server; with TARDIS it stayed behind"
        self.taken.append(_ImportedOption(machine.ours, line, key, name, note, text))

    def _option(
        self, machine: MachineType, setting: YamlValue, key: str, name: str, value: OptionValue | None, what: str
    ) -> None:
        note: Say = self.notes.converted
        text = ""
        if value is None:
            value, note, text = _blank(what), self.notes.needed, f"write it: {what}"
        self.per_type[machine.ours][name] = value
        self.taken.append(_ImportedOption(machine.ours, setting.line, key, name, note, text))

    # ------------------------------------------------------------------------------------------------------- options

    def options(self) -> YamlBlock:
        """Return everything under ``options``."""
        block = YamlBlock()
        if any(self.section.peek(key) is not None for key in _CREDENTIAL):
            self._credential(block)
        else:
            self._cloud(block)
        first, *others = list(self.per_type.values()) or [{}]
        common = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}
        for one in self.taken:
            shared = one.name.partition(".")[0] in common
            at = self.ours if shared else f"{self.ours}.types.{one.type}"
            one.note(one.line, one.key, f"{at}.{one.name}", one.text)
        _put(block, common)
        block.put("types", self._types(common))
        self.section.drop(COMMON)
        self.section.drop_rest("TARDIS's OpenStack adapter has no such option")
        return block

    def _types(self, common: dict[str, OptionValue]) -> YamlBlock:
        types = YamlBlock()
        for name, written in self.per_type.items():
            one = YamlBlock()
            one.put("flavor", self.flavors[name])
            _put(one, {k: v for k, v in written.items() if k not in common})
            types.put(name, one)
        if not self.per_type:
            types.put("unnamed", _blank("a drone type: flavor"))
        return types

    def _credential(self, block: YamlBlock) -> None:
        """Write ``auth``: the login in the site file itself, without the secret."""
        auth, at = YamlBlock(), f"{self.ours}.auth"
        for theirs, name, read, what in (
            ("auth_url", "url", _url, "https://keystone.example.org:5000/v3"),
            ("application_credential_id", "application_credential_id", _credential_id, "id of the credential"),
        ):
            setting, key = self.section.take(theirs), self.section.name(theirs)
            value = read(setting) if setting is not None else None
            auth.put(name, value or placeholder(what))
            if setting is not None and value is not None:
                self.notes.converted(setting.line, key, f"{at}.{name}")
            else:
                line = self.section.line_of(setting)
                self.notes.needed(line, key, f"{at}.{name}", f"write it: {what}")
        name = "application_credential_secret"
        file = f"{self.name}.secret"
        auth.put(name, placeholder(f"{{file: {file}}}"))
        setting = self.section.take(name)
        self.notes.needed(
            self.section.line_of(setting),
            self.section.name(name),
            f"{at}.{name}",
            f"{_NOT_COPIED}. Put it into a file that only the service can read, and name that: `{{file: {file}}}`",
        )
        block.put("auth", auth)
        self.section.drop(
            {
                "password": f"{_NOT_COPIED}; the application credential is enough",
                **dict.fromkeys(_PASSWORD, "the application credential says who we are, and in which project"),
            }
        )

    def _cloud(self, block: YamlBlock) -> None:
        """Write ``cloud``: an entry of a clouds.yaml, given as a comment without the password."""
        auth, key = YamlBlock(), self.section.name("password")
        for name in ("auth_url", *_PASSWORD):
            setting = self.section.take(name)
            value = (_url(setting) if name == "auth_url" else setting.text) if setting is not None else None
            auth.put(name, value or "...")
            if setting is not None:
                self.notes.dropped(
                    setting.line,
                    self.section.name(name),
                    f"it goes into clouds.yaml, entry `{self.name}`: a remark under `options` has that, to be copied",
                )
        auth.put("password", "...")
        setting = self.section.take("password")
        self.notes.needed(
            self.section.line_of(setting),
            key,
            f"{self.ours}.cloud",
            f"{_NOT_COPIED}. Write a clouds.yaml that only the service can read, with the entry `{self.name}` as in the"
            " remark under `options`, and the password; better with an application credential"
            " (docs/how-to/openstack.md, step 1)",
        )
        block.put("cloud", self.name)
        block.remark("Its entry, for a clouds.yaml that only the service can read (`clouds_file` says where it is):")
        for line in str(_nested("clouds", self.name, "auth", auth)).splitlines():
            block.remark(line)


# ------------------------------------------------------------------------------------------------------------- writing


def _blank(what: str) -> str:
    """Return a placeholder that cannot be a name: names contain no comma."""
    return placeholder(what if "," in what else f"{what}, ...")


def _nested(outer: str, middle: str, inner: str, block: YamlBlock) -> YamlBlock:
    for name in (inner, middle, outer):
        above = YamlBlock()
        above.put(name, block)
        block = above
    return block


def _put(block: YamlBlock, written: dict[str, OptionValue]) -> None:
    for name, value in written.items():
        if isinstance(value, dict):
            one = YamlBlock()
            _put(one, dict(value))
            block.put(name, one)
        else:
            block.put(name, value)


# ------------------------------------------------------------------------------------------------------------- reading


def _name(setting: YamlValue) -> str | None:
    text = setting.text or ""
    return text if _NAME_OR_ID.fullmatch(text) and text.isprintable() else None


def _reference(setting: YamlValue) -> str | None:
    """Return the id; Nova also accepts a URL that ends in it."""
    text = setting.text or ""
    return _name(YamlValue(text.rstrip("/").rpartition("/")[2], setting.line))


def _url(setting: YamlValue) -> str | None:
    """Return the URL without credentials."""
    parts = _URL.fullmatch(setting.text or "")
    return f"{parts[1]}{parts[2]}" if parts and parts[2].isprintable() else None


def _credential_id(setting: YamlValue) -> str | None:
    text = setting.text or ""
    return text if _CREDENTIAL_ID.fullmatch(text) else None


def _switch(setting: YamlValue) -> bool | None:
    return {"true": True, "false": False}.get((setting.text or "").lower())


def _names(setting: YamlValue, key: str, most: int) -> list[str] | None:
    """Return the names of ``[{key: NAME}, ...]``; None if it contains anything else."""
    found = [
        _name(one.value[key]) if isinstance(one.value, dict) and not one.tag and set(one.value) == {key} else None
        for one in setting.items
    ]
    names = [name for name in found if name is not None]
    return names if 0 < len(found) == len(names) <= most else None


def _networks(setting: YamlValue) -> list[str] | None:
    return [] if setting.text == "none" else _names(setting, "uuid", _MOST_NETWORKS)


def _groups(setting: YamlValue) -> list[str] | None:
    return _names(setting, "name", _MOST_GROUPS)


def _volume(setting: YamlValue) -> dict[str, YamlValue] | None:
    """Return the only block device, if it is a boot volume that is created from an image."""
    only = setting.items[0] if len(setting.items) == 1 else None
    if only is None or only.tag or not isinstance(only.value, dict):
        return None
    volume = only.value
    if not set(volume) >= _VOLUME or not set(volume) <= _VOLUME | _VOLUME_MAY:
        return None
    if "volume_type" in volume and _name(volume["volume_type"]) is None:
        return None
    kinds = [volume[key].text for key in ("source_type", "destination_type", "boot_index")]
    return volume if kinds == ["image", "volume", "0"] else None


def _whole_gib(setting: YamlValue) -> int:
    """Return the size; 0 if it is not a valid one."""
    number = setting.number
    return int(number) if number is not None and number == int(number) and 1 <= number <= _LARGEST_GIB else 0
