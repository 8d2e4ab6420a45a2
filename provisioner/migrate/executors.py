"""TARDIS's executors as our transports: tools on this host, or over ssh. Secrets are named, never copied."""

from __future__ import annotations

from provisioner.migrate.report import KeyReader
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import YamlBlock, placeholder

KINDS = {"ShellExecutor", "SSHExecutor", "DupingSSHExecutor"}
_SECRETS = {
    "password": "a password is kept in a file of its own: write `{file: PATH}`",
    "passphrase": "a passphrase is kept in a file of its own: write `{file: PATH}`",
    "mfa_config": "the seed of the one-time codes is kept in a file of its own: write `{file: PATH}`. There is one "
    "seed, and the prompt is not asked for",
}
_OURS = {"mfa_config": "totp"}
_NAMES = {"host": "host", "username": "user", "tunnel": "jump"}


def kind_of(setting: YamlValue) -> str:
    """Return ``SSHExecutor`` for ``!TardisSSHExecutor`` and ``!SSHExecutor``; other tags unchanged."""
    return setting.tag.removeprefix("!").removeprefix("Tardis")


def put_executor(section: KeyReader, options: YamlBlock, ours: str) -> None:
    """Take ``executor`` from a site's section and write ``transport`` and ``tools`` into its options at ``ours``."""
    setting, key = section.take("executor"), section.name("executor")
    if setting is None:
        options.put("transport", "tools", "the site's tools, run on this host")
        return
    kind = kind_of(setting)
    if kind not in KINDS:
        section.notes.needed(
            setting.line,
            key,
            f"{ours}.transport",
            f"`{setting.tag or 'this'}` is no executor of TARDIS: say how the site's tools run",
        )
        options.put("transport", placeholder("tools, with ssh if the site is elsewhere"))
        return
    options.put("transport", "tools")
    if kind == "ShellExecutor":
        section.notes.converted(setting.line, key, f"{ours}.transport", "the tools run on this host")
        return
    given = KeyReader(YamlValue(setting.value, setting.line), key, section.notes)
    ssh = _ssh(given, f"{ours}.tools.ssh")
    if kind == "DupingSSHExecutor":
        ssh.put("forced_command", "stdin")
        wrapper = given.take("wrapper")
        section.notes.converted(
            wrapper.line if wrapper else setting.line,
            given.name("wrapper") if wrapper else key,
            f"{ours}.tools.ssh.forced_command",
            "the far end reads its command from its input, as with the wrapper",
        )
    else:
        section.notes.converted(setting.line, key, f"{ours}.tools.ssh", "the tools run over one ssh connection")
    given.drop_rest("an option of asyncssh: our ssh has its own, see `ssh` in the reference")
    tools = YamlBlock()
    tools.put("ssh", ssh)
    options.put("tools", tools)


def _ssh(given: KeyReader, ours: str) -> YamlBlock:
    block, notes = YamlBlock(), given.notes
    for theirs, name in _NAMES.items():
        setting = given.take(theirs)
        if setting is not None and setting.text:
            block.put(name, setting.text)
            notes.converted(setting.line, given.name(theirs), f"{ours}.{name}")
        elif name != "jump":
            block.put(name, placeholder(f"{name} at the login node"))
            notes.needed(given.line_of(setting), given.name(theirs), f"{ours}.{name}", "write it")
    port = given.take("port")
    if port is not None:
        number = port.number
        good = number is not None and number == int(number) and 1 <= number <= 65535
        block.put("port", int(number) if good and number else placeholder("port"))
        (notes.converted if good else notes.needed)(port.line, given.name("port"), f"{ours}.port", "the ssh port")
    let_in = _key(given, block, ours)
    _known_hosts(given, block, ours)
    for theirs, why in _SECRETS.items():
        setting = given.take(theirs)
        if setting is not None:
            name = _OURS.get(theirs, theirs)
            let_in |= name != "passphrase"
            block.put(name, placeholder(f"{{file: PATH}} with the {name}"))
            notes.needed(setting.line, given.name(theirs), f"{ours}.{name}", why)
    if not let_in:
        block.put("agent", True)
        notes.changed(
            given.line,
            given.path,
            f"{ours}.agent",
            "no key is named, so asyncssh tried those of ~/.ssh; here the ssh agent is asked: better name a `key`",
        )
    return block


def _key(given: KeyReader, block: YamlBlock, ours: str) -> bool:
    setting = given.take("client_keys")
    if setting is None:
        return False
    first, *others = [one.text or "" for one in setting.items or [setting]]
    if not first:
        block.put("key", placeholder("file of the private key"))
        given.notes.needed(setting.line, given.name("client_keys"), f"{ours}.key", "name the file of the private key")
        return True
    block.put("key", first)
    more = f"; there is one key here: {len(others)} further left out" if others else ""
    given.notes.converted(setting.line, given.name("client_keys"), f"{ours}.key", f"the private key{more}")
    return True


def _known_hosts(given: KeyReader, block: YamlBlock, ours: str) -> None:
    setting, key = given.take("known_hosts"), given.name("known_hosts")
    if setting is None:
        return
    if setting.text:
        block.put("known_hosts", setting.text)
        given.notes.converted(setting.line, key, f"{ours}.known_hosts")
    else:
        given.notes.changed(
            setting.line,
            key,
            f"{ours}.known_hosts",
            "TARDIS believed any host. Here the host must be in ~/.ssh/known_hosts, or in the file named here",
        )
