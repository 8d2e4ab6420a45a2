"""Options of tools that are run over ssh."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from provisioner.config.credentials import secret_file_credential, ssh_credential
from provisioner.config.models import ConfigSection, section_check
from provisioner.config.units import ConfigPath, PositiveDuration, Secret
from provisioner.model import Credential

_SSH_HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]"
_SSH_USER = r"[A-Za-z0-9_][A-Za-z0-9._-]*"


class SshSettings(ConfigSection):
    """A login node and the credentials there. Nothing is taken from ``~/.ssh/config``."""

    host: str = Field(pattern=rf"^({_SSH_HOST})$", examples=["login.example.org"])
    """Name or address of the login node."""
    port: int = Field(22, ge=1, le=65535)
    """Its port."""
    user: str = Field(pattern=rf"^{_SSH_USER}$", examples=["drones"])
    """Account there."""
    known_hosts: ConfigPath = Field(
        Path("~/.ssh/known_hosts"), validate_default=True, examples=["known_hosts"]
    )
    """File with the host keys of login node and jump host, as OpenSSH writes it. Hosts that are not in it are
    refused, always."""
    key: ConfigPath | None = Field(None, examples=["id_drones"])
    """File with the private key; a certificate beside it (`KEY-cert.pub`) is used too."""
    passphrase: Secret | None = None
    """Passphrase of `key`, if it has one."""
    agent: bool = False
    """Offer the keys of the ssh agent that SSH_AUTH_SOCK names, after `key`."""
    password: Secret | None = None
    """Password, for login nodes that ask for one, alone or beside a key or a one-time code."""
    totp: Secret | None = None
    """Seed of the one-time codes (RFC 6238: SHA-1, six digits, thirty seconds) in base32. A code is used once:
    connecting again may take half a minute."""
    jump: str | None = Field(
        None,
        pattern=rf"^({_SSH_USER}@)?({_SSH_HOST})(:\d{{1,5}})?$",
        examples=["drones@gate.example.org"],
    )
    """Host to go through, `[user@]host[:port]`; let in by the same key, agent, password and codes."""
    forced_command: Literal["stdin"] | None = None
    """For keys whose forced command (`command=` in authorized_keys) reads its command (`exec TOOL ARGUMENT...`)
    as the first line of input, as `bash -s` does: `stdin`. One that looks at SSH_ORIGINAL_COMMAND needs nothing
    here."""
    max_sessions: int = Field(5, ge=1, le=100)
    """Commands at a time over the one connection, less than the server's MaxSessions (10 unless set); a refusal
    lowers it."""
    connect_deadline: PositiveDuration = 45.0
    """Longest time to connect and log in, the jump host and waiting for a code included."""
    keepalive: PositiveDuration = 15.0
    """Interval at which a silent connection is probed; after three failures it counts as lost."""
    retry: PositiveDuration = 2.0
    """Pause after a first failure to connect; each further failure doubles it."""
    retry_at_most: PositiveDuration = 300.0
    """Longest pause between two tries to connect."""

    def credentials(self) -> Iterator[Credential]:
        """Yield the key, and the certificate beside it."""
        if self.key is not None:
            yield secret_file_credential("key", self.key)
            certificate = self.key.with_name(f"{self.key.name}-cert.pub")
            if certificate.exists():
                yield ssh_credential(certificate.name, certificate)

    @section_check
    def _some_credential(self) -> Self:
        if self.key is None and not self.agent and self.password is None and self.totp is None:
            raise ValueError(
                "no way to be let in: write `key: FILE` or `agent: true` (or `password`, `totp`)"
            )
        if self.passphrase is not None and self.key is None:
            raise ValueError("`passphrase` belongs to a `key`: write `key: FILE`")
        if self.retry_at_most < self.retry:
            raise ValueError("`retry_at_most` is shorter than `retry`")
        return self
