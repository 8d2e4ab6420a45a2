"""The common part of each kind of site: options by drone type, and TARDIS's executors as our transports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provisioner.migrate.machine_types import MachineType
from provisioner.migrate.report import KeyReader
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import Scalar, YamlBlock, placeholder

Option = Scalar | Sequence[Scalar] | Mapping[str, Scalar]

_NO_TICK = "there is no such cache: each tick polls once (`policy.interval`, `timeouts.view_max_age`)"
COMMON_KEYS = {
    "max_age": _NO_TICK,
    "StatusUpdate": _NO_TICK,
    "bulk_size": "drones of one type are submitted at once; at most `limits.max_starts_per_tick`",
    "bulk_delay": "calls are not collected: each tick makes one",
}
"""Keys of a site's section that several adapters of TARDIS share, with the reason why they are not needed."""


class OptionsImport:
    """Import of the options of one site: type by type, then what is left of its section."""

    remarks: tuple[str, ...] = ()
    """Comments for the site file on what TARDIS cannot express."""

    def __init__(self, section: KeyReader, file: str, name: str) -> None:
        self.section, self.notes, self.file, self.name = section, section.notes, file, name
        self.ours = f"{file}: options"
        self.types: dict[str, dict[str, Any]] = {}
        """Options by drone type."""

    def machine(self, machine: MachineType, given: KeyReader) -> None:
        """Import the configuration of one type."""
        raise NotImplementedError

    def site_options(self, block: YamlBlock) -> None:
        """Write what is left of the section."""
        raise NotImplementedError

    def put(self, machine: MachineType, value: Option, key: str, below: str = "") -> str:
        """Write an option of a type at ``key``, or at ``key.below``, and return its place in our files."""
        options = self.types.setdefault(machine.ours, {})
        if below:
            options.setdefault(key, {})[below] = value
        else:
            options[key] = value
        return ".".join(filter(None, (self.ours, "types", machine.ours, key, below)))

    def written(self) -> YamlBlock:
        """Return everything under ``options``."""
        block = YamlBlock()
        self.site_options(block)
        self.section.drop(COMMON_KEYS)
        self.section.drop_rest("the adapter of TARDIS has no such option")
        if types := {name: options for name, options in self.types.items() if options}:
            block.put("types", types)
        return block


# ------------------------------------------------------------------------------------------------------------ executors

EXECUTORS = {"ShellExecutor", "SSHExecutor", "DupingSSHExecutor"}
_SECRET_OPTIONS = {
    "password": ("password", "a password is kept in a file of its own: write `{file: PATH}`"),
    "passphrase": ("passphrase", "a passphrase is kept in a file of its own: write `{file: PATH}`"),
    "mfa_config": (
        "totp",
        "the seed of the one-time codes is kept in a file of its own: write `{file: PATH}`. There is one seed, and the "
        "prompt is not asked for",
    ),
}
"""Secrets of an ssh login, which are named and never copied: our name, and what to do."""


def kind_of(setting: YamlValue) -> str:
    """Return ``SSHExecutor`` for ``!TardisSSHExecutor`` and ``!SSHExecutor``; other tags unchanged."""
    return setting.tag.removeprefix("!").removeprefix("Tardis")


def put_executor(section: KeyReader, options: YamlBlock, ours: str) -> None:
    """Take ``executor`` from a site's section and write ``transport`` and ``tools`` into its options at ``ours``."""
    setting = section.take("executor")
    if setting is None:
        options.put("transport", "tools", "the site's tools, run on this host")
        return
    kind = kind_of(setting)
    if kind not in EXECUTORS:
        problem = f"`{setting.tag or 'this'}` is no executor of TARDIS: say how the site's tools run"
        section.needed("executor", f"{ours}.transport", problem)
        options.put("transport", placeholder("tools, with ssh if the site is elsewhere"))
        return
    options.put("transport", "tools")
    if kind == "ShellExecutor":
        section.converted("executor", f"{ours}.transport", "the tools run on this host")
        return
    given = KeyReader(YamlValue(setting.value, setting.line), section.name("executor"), section.notes)
    ssh = _ssh(given, f"{ours}.tools.ssh")
    if kind == "DupingSSHExecutor":
        ssh.put("forced_command", "stdin")
        key = "wrapper" if given.take("wrapper") else ""
        text = "the far end reads its command from its input, as with the wrapper"
        given.converted(key, f"{ours}.tools.ssh.forced_command", text)
    else:
        given.converted("", f"{ours}.tools.ssh", "the tools run over one ssh connection")
    given.drop_rest("an option of asyncssh: our ssh has its own, see `ssh` in the reference")
    options.put("tools", {"ssh": ssh})


def _ssh(given: KeyReader, ours: str) -> YamlBlock:
    block = YamlBlock()
    for theirs, name in (("host", "host"), ("username", "user"), ("tunnel", "jump")):
        if name != "jump" or ((tunnel := given.peek(theirs)) and tunnel.text):
            what = f"{name} at the login node"
            given.put(block, theirs, f"{ours}.{name}", lambda value: value.text or None, what=what, remedy="write it")
    if given.peek("port") is not None:
        text = "the ssh port"
        given.put(block, "port", f"{ours}.port", lambda value: value.whole(65535), what="port", text=text, remedy=text)
    has_credential = _put_key(given, block, ours)
    known_hosts = given.take("known_hosts")
    if known_hosts is not None and known_hosts.text:
        block.put("known_hosts", known_hosts.text)
        given.converted("known_hosts", f"{ours}.known_hosts")
    elif known_hosts is not None:
        text = "TARDIS believed any host. Here the host must be in ~/.ssh/known_hosts, or in the file named here"
        given.changed("known_hosts", f"{ours}.known_hosts", text)
    for theirs, (name, remedy) in _SECRET_OPTIONS.items():
        if given.take(theirs) is not None:
            has_credential |= name != "passphrase"
            block.put(name, placeholder(f"{{file: PATH}} with the {name}"))
            given.needed(theirs, f"{ours}.{name}", remedy)
    if not has_credential:
        block.put("agent", True)
        text = "no key is named, so asyncssh tried those of ~/.ssh; here the ssh agent is asked: better name a `key`"
        given.changed("", f"{ours}.agent", text)
    return block


def _put_key(given: KeyReader, block: YamlBlock, ours: str) -> bool:
    setting = given.take("client_keys")
    if setting is None:
        return False
    first, *others = [one.text or "" for one in setting.items or [setting]]
    if first:
        block.put("key", first)
        more = f"; there is one key here: {len(others)} further left out" if others else ""
        given.converted("client_keys", f"{ours}.key", f"the private key{more}")
    else:
        block.put("key", placeholder("file of the private key"))
        given.needed("client_keys", f"{ours}.key", "name the file of the private key")
    return True
