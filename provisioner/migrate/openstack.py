"""Options of an OpenStack site from TARDIS's OpenStack adapter."""

from __future__ import annotations

import re
from collections.abc import Callable

from provisioner.migrate.sites import MachineType, Option, SiteImport
from provisioner.migrate.source import KeyReader, YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

_PASSWORD_KEYS = ("username", "project_name", "user_domain_name", "project_domain_name")
"""Keys that accompany a password, with the same names as in clouds.yaml."""
_NOT_COPIED = "a secret: not copied"
_SAFE_NAME = re.compile(r"[^\s/,][^/,\n]{0,254}")
_SWITCHES = {"true": True, "false": False}
_CREDENTIAL_ID = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_URL_PARTS = re.compile(r"(https?://)(?:[^@\s]*@)?([^\s?#@]+)")
_NOT_OF_DRONES = {
    "user_data": "generated here: the drone starts HTCondor itself. What yours prepares (mounts, a proxy) has to be in"
    " the image, or in a script that `setup` names; see docs/how-to/openstack.md",
    "personality": "files come with the drone; yours have to be in the image",
    "metadata": "not copied, as there may be secrets in it: write what is to stay under `metadata`",
}


class OpenStackSiteImport(SiteImport):
    """Import of one OpenStack site: the login, and each type's request to Nova, whose keys TARDIS passes on."""

    hidden_gpus = True

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        for theirs, (name, what, read) in _SERVER_OPTIONS.items():
            setting = given.take(theirs)
            if not setting and theirs not in _REQUIRED_SERVER_KEYS:
                continue
            if theirs == "networks" and setting.text == "auto":
                given.converted(theirs, "", "as the cloud sees fit: so without it, too")
                continue
            value = read(setting)
            place = self.put(machine, _blank(what) if value is None else value, name)
            if value is None:
                given.needed(
                    theirs, place, _REQUIRED_SERVER_KEYS.get(theirs) or f"write it: {what}"
                )
            else:
                text = (
                    "`provisioner check --live` compares it with the type, GPUs included"
                    if name == "flavor"
                    else ""
                )
                given.converted(theirs, place, text)
        if given.take("block_device_mapping_v2"):
            text = (
                "a server boots from its image, or from one volume that is made of it, and has no other: write"
                " `boot_volume: {size: 40 GiB}`, or nothing if the flavour's disk will do"
            )
            given.needed(
                "block_device_mapping_v2", f"{self.ours}.types.{machine.ours}.boot_volume", text
            )
        given.drop(_NOT_OF_DRONES)
        given.drop_rest("drones have no such request to Nova")

    def site_options(self, block: YamlBlock) -> None:
        if any(self.section.peek(f"application_credential_{key}") for key in ("id", "secret")):
            self._credential(block)
        else:
            self.section.drop(
                dict.fromkeys(
                    ("auth_url", *_PASSWORD_KEYS), f"copy it to clouds.yaml, entry `{self.name}`"
                )
            )
            self.section.take("password")
            text = (
                f"{_NOT_COPIED}. Write a clouds.yaml that only the service can read, with the entry `{self.name}` and"
                " the password; better with an application credential (docs/how-to/openstack.md, step 1)"
            )
            self.section.needed("password", f"{self.ours}.cloud", text)
            block.put("cloud", self.name, "an entry of clouds.yaml")
        if not self.types:
            block.put("types", {"unnamed": _blank("a drone type: flavor")})

    def _credential(self, block: YamlBlock) -> None:
        """Write ``auth``: the login in the site file itself, without the secret."""
        auth = YamlBlock()
        at = f"{self.ours}.auth"
        section = self.section
        section.put(
            auth, "auth_url", f"{at}.url", _url, what="https://keystone.example.org:5000/v3"
        )
        key = "application_credential_id"
        section.put(auth, key, f"{at}.{key}", _credential_id, what="id of the credential")
        key = "application_credential_secret"
        file = f"{self.name}.secret"
        auth.put(key, placeholder(f"{{file: {file}}}"))
        section.take(key)
        remedy = (
            f"Put it into a file that only the service can read, and name that: `{{file: {file}}}`"
        )
        section.needed(key, f"{at}.{key}", f"{_NOT_COPIED}. {remedy}")
        block.put("auth", auth)
        section.drop({"password": f"{_NOT_COPIED}; the application credential is enough"})
        section.drop(
            dict.fromkeys(_PASSWORD_KEYS, "the application credential names user and project")
        )


def _blank(what: str) -> str:
    """Return a placeholder that cannot be a name: names contain no comma."""
    return placeholder(what if "," in what else f"{what}, ...")


def _safe(text: str) -> str | None:
    return text if _SAFE_NAME.fullmatch(text) and text.isprintable() else None


def _name(setting: YamlValue) -> str | None:
    return _safe(setting.text or "")


def _reference(setting: YamlValue) -> str | None:
    """Return the id; Nova also accepts a URL that ends in it."""
    return _safe((setting.text or "").rstrip("/").rpartition("/")[2])


def _url(setting: YamlValue) -> str | None:
    """Return the URL without credentials."""
    parts = _URL_PARTS.fullmatch(setting.text or "")
    return f"{parts[1]}{parts[2]}" if parts and parts[2].isprintable() else None


def _credential_id(setting: YamlValue) -> str | None:
    found = _CREDENTIAL_ID.fullmatch(setting.text or "")
    return found[0] if found else None


def _names(key: str, most: int) -> Callable[[YamlValue], list[str] | None]:
    """Return a reader of the names of ``[{key: NAME}, ...]``; it returns None if there is anything else."""

    def read(setting: YamlValue) -> list[str] | None:
        if setting.text == "none":
            return []
        found = [one.value for one in setting.items if isinstance(one.value, dict) and not one.tag]
        names = [_name(one[key]) for one in found if set(one) == {key}]
        known = [name for name in names if name is not None]
        return known if 0 < len(setting.items) == len(known) <= most else None

    return read


_SERVER_OPTIONS: dict[str, tuple[str, str, Callable[[YamlValue], Option | None]]] = {
    "flavorRef": ("flavor", "flavour, by name or id", _reference),
    "imageRef": ("image", "image, by name or id", _reference),
    "networks": ("networks", "[networks, by name or id]", _names("uuid", 8)),
    "security_groups": ("security_groups", "[security groups, by name or id]", _names("name", 16)),
    "key_name": ("key_pair", "key pair, by name", _name),
    "availability_zone": ("availability_zone", "availability zone, by name", _name),
    "config_drive": (
        "config_drive",
        "true, or false",
        lambda v: _SWITCHES.get((v.text or "").lower()),
    ),
}
"""Keys of a server request: our option, what it is, and the reader of its value."""
_REQUIRED_SERVER_KEYS = {
    "flavorRef": "write the flavour that servers of this type have",
    "imageRef": "",
}
