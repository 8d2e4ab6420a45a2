"""Options of an OpenStack site from TARDIS's OpenStack adapter: the login, and each type's request to Nova."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from provisioner.migrate.machine_types import MachineType
from provisioner.migrate.report import KeyReader
from provisioner.migrate.site_options import Option, OptionsImport
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

_PASSWORD_KEYS = ("username", "project_name", "user_domain_name", "project_domain_name")
"""Keys that accompany a password, with the same names as in clouds.yaml."""
_CREDENTIAL_KEYS = ("application_credential_id", "application_credential_secret")
_NOT_COPIED = "a secret: not copied"
_SAFE_NAME = re.compile(r"[^\s/,][^/,\n]{0,254}")
_CREDENTIAL_ID = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_URL_PARTS = re.compile(r"(https?://)(?:[^@\s]*@)?([^\s?#@]+)")
_VOLUME_KEYS = {"uuid", "source_type", "destination_type", "boot_index"}
_VOLUME_OPTIONS = {"volume_size", "volume_type", "delete_on_termination"}
_MAX_NETWORKS, _MAX_GROUPS, _MAX_VOLUME_GIB = 8, 16, 1024**2
_NOT_OF_DRONES = {
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


class OpenStackOptionsImport(OptionsImport):
    """Import of one site, type by type."""

    per_type_only = frozenset({("flavor",)})

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        """Import the server request of one type; TARDIS passes its keys on to Nova."""
        self._option(machine, given, "flavorRef", "flavor", "flavour, by name or id")
        self._boot(machine, given)
        networks = given.peek("networks")
        if networks is not None and networks.text == "auto":
            given.take("networks")
            given.converted("networks", "", "as the cloud sees fit: so without it, too")
        for theirs, name, what in (
            ("networks", "networks", "[networks, by name or id]"),
            ("security_groups", "security_groups", "[security groups, by name or id]"),
            ("key_name", "key_pair", "key pair, by name"),
            ("availability_zone", "availability_zone", "availability zone, by name"),
            ("config_drive", "config_drive", "true, or false"),
        ):
            if given.peek(theirs) is not None:
                self._option(machine, given, theirs, name, what)
        given.drop(_NOT_OF_DRONES)
        given.drop_rest("drones have no such request to Nova")

    def _option(self, machine: MachineType, given: KeyReader, theirs: str, name: str, what: str) -> None:
        setting = given.take(theirs)
        value = _READERS[theirs](setting) if setting is not None else None
        if value is not None:
            text = "`provisioner check --live` compares it with the type, GPUs included" if name == "flavor" else ""
            self.add(machine, (name,), value, partial(given.converted, theirs, text=text))
        else:
            remedy = "write the flavour that servers of this type have" if name == "flavor" else f"write it: {what}"
            self.add(machine, (name,), _blank(what), partial(given.needed, theirs, text=remedy))

    def _boot(self, machine: MachineType, given: KeyReader) -> None:
        """Import the image, or the volume that is created from it."""
        key = "block_device_mapping_v2"
        disks = given.take(key)
        volume = _boot_volume(disks) if disks is not None else None
        if disks is None or volume is None:
            if disks is not None:
                text = (
                    "a server boots from its image, or from one volume that is made of it, and has no other: write"
                    " `boot_volume`, or nothing if the flavour's disk will do"
                )
                given.needed(key, f"{self.ours}.types.{machine.ours}.boot_volume", text)
            self._option(machine, given, "imageRef", "image", "image, by name or id")
            return
        given.drop({"imageRef": "servers boot from a volume, which names its image itself"})
        device = KeyReader(YamlValue(volume, disks.line), given.name(key), given.notes)
        self._option(machine, device, "uuid", "image", "image, by name or id")
        size, kind, deleted = (volume.get(name) for name in ("volume_size", "volume_type", "delete_on_termination"))
        size_gib = size.whole(_MAX_VOLUME_GIB) if size is not None else None
        if not size_gib:
            report = partial(_report_size, given)
        elif deleted is None or _switch(deleted) is not True:
            report = partial(given.changed, key, text="it is deleted with its server; with TARDIS it stayed behind")
        else:
            report = partial(given.converted, key, text="a volume made from the image")
        written = {"size": f"{size_gib} GiB" if size_gib else placeholder("size of the volume, as 40 GiB")}
        if kind is not None and kind.text:
            written["type"] = kind.text
        self.add(machine, ("boot_volume",), written, report)

    # ------------------------------------------------------------------------------------------------------- options

    def options(self) -> YamlBlock:
        """Return everything under ``options``."""
        block = YamlBlock()
        if any(self.section.peek(key) is not None for key in _CREDENTIAL_KEYS):
            self._credential(block)
        else:
            self._cloud(block)
        self.put_types(block)
        if not self.types:
            block.put("types", {"unnamed": _blank("a drone type: flavor")})
        self.drop_rest("OpenStack")
        return block

    def _credential(self, block: YamlBlock) -> None:
        """Write ``auth``: the login in the site file itself, without the secret."""
        auth, at, section = YamlBlock(), f"{self.ours}.auth", self.section
        section.put(auth, "auth_url", f"{at}.url", _url, what="https://keystone.example.org:5000/v3")
        key = "application_credential_id"
        section.put(auth, key, f"{at}.{key}", _credential_id, what="id of the credential")
        key, file = "application_credential_secret", f"{self.name}.secret"
        auth.put(key, placeholder(f"{{file: {file}}}"))
        section.take(key)
        remedy = f"Put it into a file that only the service can read, and name that: `{{file: {file}}}`"
        section.needed(key, f"{at}.{key}", f"{_NOT_COPIED}. {remedy}")
        block.put("auth", auth)
        section.drop(
            {
                "password": f"{_NOT_COPIED}; the application credential is enough",
                **dict.fromkeys(_PASSWORD_KEYS, "the application credential names user and project"),
            }
        )

    def _cloud(self, block: YamlBlock) -> None:
        """Write ``cloud``: an entry of a clouds.yaml, given as a comment without the password."""
        auth = YamlBlock()
        for name in ("auth_url", *_PASSWORD_KEYS):
            setting = self.section.take(name)
            value = (_url(setting) if name == "auth_url" else setting.text) if setting is not None else None
            auth.put(name, value or "...")
            if setting is not None:
                text = f"copy it to clouds.yaml, entry `{self.name}`, from the remark under `options`"
                self.section.dropped(name, text)
        auth.put("password", "...")
        self.section.take("password")
        text = (
            f"{_NOT_COPIED}. Write a clouds.yaml that only the service can read, with the entry `{self.name}` as in the"
            " remark under `options`, and the password; better with an application credential"
            " (docs/how-to/openstack.md, step 1)"
        )
        self.section.needed("password", f"{self.ours}.cloud", text)
        block.put("cloud", self.name)
        block.remark("Its entry, for a clouds.yaml that only the service can read (`clouds_file` names it):")
        for line in YamlBlock({"clouds": {self.name: {"auth": auth}}}).lines:
            block.remark(line)


def _report_size(given: KeyReader, place: str) -> None:
    given.needed("block_device_mapping_v2", f"{place}.size", "write how large the volume is, as `40 GiB`")


def _blank(what: str) -> str:
    """Return a placeholder that cannot be a name: names contain no comma."""
    return placeholder(what if "," in what else f"{what}, ...")


# ------------------------------------------------------------------------------------------------------------- reading


def _name(setting: YamlValue) -> str | None:
    text = setting.text or ""
    return text if _SAFE_NAME.fullmatch(text) and text.isprintable() else None


def _reference(setting: YamlValue) -> str | None:
    """Return the id; Nova also accepts a URL that ends in it."""
    text = setting.text or ""
    return _name(YamlValue(text.rstrip("/").rpartition("/")[2], setting.line))


def _url(setting: YamlValue) -> str | None:
    """Return the URL without credentials."""
    parts = _URL_PARTS.fullmatch(setting.text or "")
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
    return [] if setting.text == "none" else _names(setting, "uuid", _MAX_NETWORKS)


def _groups(setting: YamlValue) -> list[str] | None:
    return _names(setting, "name", _MAX_GROUPS)


def _boot_volume(setting: YamlValue) -> dict[str, YamlValue] | None:
    """Return the only block device, if it is a boot volume that is created from an image."""
    only = setting.items[0] if len(setting.items) == 1 else None
    if only is None or only.tag or not isinstance(only.value, dict):
        return None
    volume = only.value
    if not set(volume) >= _VOLUME_KEYS or not set(volume) <= _VOLUME_KEYS | _VOLUME_OPTIONS:
        return None
    if "volume_type" in volume and _name(volume["volume_type"]) is None:
        return None
    kinds = [volume[key].text for key in ("source_type", "destination_type", "boot_index")]
    return volume if kinds == ["image", "volume", "0"] else None


_READERS: dict[str, Callable[[YamlValue], Option | None]] = {
    "flavorRef": _reference,
    "imageRef": _reference,
    "uuid": _reference,
    "networks": _networks,
    "security_groups": _groups,
    "key_name": _name,
    "availability_zone": _name,
    "config_drive": _switch,
}
