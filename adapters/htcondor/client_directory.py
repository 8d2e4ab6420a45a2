"""A private directory with the configuration and the tokens of our own HTCondor client."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from adapters.htcondor.tokens import InvalidTokenError, read_token
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import FaultKind

CLIENT_CONFIG = """\
RELEASE_DIR = /nonexistent
LOCAL_DIR = {home}
LOG = {home}
# the bindings say why they failed here and nowhere else
TOOL_LOG = {home}/tool.log
MAX_TOOL_LOG = 1 Mb
COLLECTOR_HOST = {collector}
LOCAL_CONFIG_FILE =
LOCAL_CONFIG_DIR =
REQUIRE_LOCAL_CONFIG_FILE = False
SEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS
SEC_DEFAULT_AUTHENTICATION_METHODS = IDTOKENS
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_ENCRYPTION = REQUIRED
SEC_DEFAULT_INTEGRITY = REQUIRED
SEC_TOKEN_DIRECTORY = {tokens}
SEC_TOKEN_SYSTEM_DIRECTORY = {tokens}
# a client that can read the pool's signing key would use that, and be the pool
SEC_PASSWORD_DIRECTORY = {home}/none
SEC_TOKEN_POOL_SIGNING_KEY_FILE = {home}/none
# a startd behind CCB calls the tool back; without daemons of ours no shared port daemon could take that call
USE_SHARED_PORT = False
UID_DOMAIN = client.invalid
FILESYSTEM_DOMAIN = client.invalid
{more}
"""
"""Nothing is taken from the host: the controller may stand on a machine that belongs to another pool."""


_PLAIN_IDENTITY = re.compile(r"[A-Za-z0-9._+-]+@[A-Za-z0-9._-]+")


class Readable(Protocol):
    """A token that is read when it is needed. Raises SecretUnreadableError."""

    def read(self) -> str: ...


class ClientDirectory:
    """A directory of mode 0700 that is gone at :meth:`close`.

    Tokens are copied: HTCondor ignores a token file of another user.
    """

    def __init__(
        self, whose: str, collector: str, token: Readable | None, token_directory: Path | None, more: str = ""
    ) -> None:
        """``whose``: the pool, for messages. ``more``: lines to add to the configuration."""
        self._whose, self._token, self._token_directory = whose, token, token_directory
        self.path = Path(tempfile.mkdtemp(prefix="provisioner-condor-"))
        self._tokens = self.path / "tokens"
        self._text = CLIENT_CONFIG.format(home=self.path, tokens=self._tokens, collector=collector, more=more)
        if os.geteuid() == 0:  # a tool of root asks for an account `condor` before it writes a log
            self._text += "CONDOR_IDS = 0.0\n"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a client: ours, without anything that HTCondor would listen to but this directory."""
        kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(("CONDOR", "_CONDOR"))}
        return kept | {"CONDOR_CONFIG": str(self.path / "condor_config")}

    def refresh(self) -> None:
        """Copy the tokens as they are now, so that they can be rotated.

        AuthError if none can be read, UnavailableError if the directory cannot be written.
        """
        wanted = self._wanted()
        try:
            self._write(wanted)
        except OSError as error:
            raise UnavailableError(f"the HTCondor client's own directory {self.path}: {error.strerror}") from None

    def _write(self, wanted: Mapping[str, str]) -> None:
        # Hosts tidy up what is old in their directory for temporary files: it may have gone, or be somebody else's now.
        if not self.path.exists():
            self.path.mkdir(mode=0o700)
        if self.path.lstat().st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "it belongs to somebody else")
        self._tokens.mkdir(mode=0o700, exist_ok=True)
        config = self.path / "condor_config"
        if not config.exists():
            config.write_text(self._text)
        for name, token in wanted.items():
            file = self._tokens / name
            if not file.exists() or file.read_text() != token:
                fresh = self._tokens / f".{name}.new"
                fresh.touch(mode=0o600)
                fresh.write_text(token)
                fresh.replace(file)
        for file in self._tokens.iterdir():
            if file.name not in wanted:
                file.unlink()

    def identities(self, issuer: str) -> tuple[str, ...]:
        """Return the identities that our tokens of ``issuer`` name, sorted. AuthError if no token can be read."""
        found = set()
        for text in self._wanted().values():
            with contextlib.suppress(InvalidTokenError):
                token = read_token(text)
                if token.issuer == issuer and _PLAIN_IDENTITY.fullmatch(token.subject):
                    found.add(token.subject)
        return tuple(sorted(found))

    def _wanted(self) -> Mapping[str, str]:
        tokens: dict[str, str] = {}
        try:
            if self._token is not None:
                tokens["token"] = self._token.read() + "\n"
            if self._token_directory is not None:
                for file in sorted(self._token_directory.iterdir()):
                    if file.is_file() and not file.name.startswith("."):
                        tokens[f"d-{file.name}"] = file.read_text()
        except SecretUnreadableError as error:
            raise AuthError(f"token of {self._whose}: {error}", FaultKind.DENIED) from None
        except (OSError, UnicodeDecodeError) as error:
            raise AuthError(f"tokens of {self._whose} in {self._token_directory}: {error}") from None
        if not tokens:
            raise AuthError(f"no token in {self._token_directory}")
        return tokens

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
