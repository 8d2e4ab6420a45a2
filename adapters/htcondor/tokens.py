"""IDTOKENS of HTCondor: their content, signed ones for drones, and the private directory of our own client with its.

A token is a JSON Web Token (HS256), as HTCondor's ``condor_token_create`` makes it. The signature
of one that we read is for the pool to check. HTCondor derives the key of the signature from the
content of the key file (``condor_auth_passwd.cpp``): the content is unscrambled, that of the key
``POOL`` is taken twice, and HKDF makes 32 bytes of it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.shared.printing import printable
from provisioner.config.credentials import jwt_claims, secret_credential
from provisioner.config.units import Secret, SecretUnreadableError
from provisioner.descriptions import credential_trouble
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import CREDENTIAL_WARNING_S, Credential, FaultKind
from provisioner.values import frozen

if TYPE_CHECKING:
    from adapters.htcondor.overlay.settings import HTCondorConfig
    from adapters.htcondor.site.settings import HTCondorSiteConfig

_SCOPE = "condor:/"


@frozen
class IdToken:
    issuer: str
    subject: str
    scopes: frozenset[str] | None = None
    """Authorisations that it is limited to (``READ``); None: all that its identity has."""


class InvalidTokenError(ValueError):
    """A text that is no IDTOKEN. The message says why, without the text."""


def read_token(text: str) -> IdToken:
    """Return the content of a token. InvalidTokenError for any other text."""
    try:
        claims = jwt_claims(text)
        issuer = claims["iss"]
        subject = claims["sub"]
    except KeyError as error:
        raise InvalidTokenError(f"no claim {error}") from None
    except ValueError as error:
        raise InvalidTokenError(str(error)) from None
    scope = claims.get("scope")
    expires = claims.get("exp", 0)
    if not isinstance(issuer, str) or not isinstance(subject, str):
        raise InvalidTokenError("issuer and subject are no texts")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires < 1e11:
        raise InvalidTokenError("its expiry is no time")
    scopes = (
        frozenset(w.removeprefix(_SCOPE) for w in scope.split())
        if isinstance(scope, str) and scope
        else None
    )
    return IdToken(printable(issuer, 200), printable(subject, 200), scopes)


def idtoken_credential(
    name: str, secret: Secret, issuer: str = "", needs: Collection[str] = ()
) -> Credential:
    """Return an IDTOKEN as a credential. A pool refuses one of another issuer, and a drone ``needs`` these scopes."""
    found = secret_credential(name, secret, is_jwt=True)
    if found.problem and found.doubtful:
        return found
    try:
        token = read_token(secret.read())
    except (SecretUnreadableError, InvalidTokenError) as error:
        return replace(
            found,
            problem=f"no IDTOKEN: {error}. Write the output of `condor_token_create` into {secret}",
        )
    foreign = bool(issuer) and token.issuer != issuer
    problem = found.problem
    lacks = set(needs) - (token.scopes if token.scopes is not None else set(needs))
    if foreign:
        problem = f"the token's issuer is {token.issuer}, not `trust_domain` {issuer}: the pool does not know it"
    elif lacks:
        problem = (
            f"the token of {token.subject} is not good for {', '.join(sorted(lacks))}. Make "
            "one with these `-authz`"
        )
    scopes = tuple(sorted(token.scopes or ()))
    return replace(
        found, scopes=scopes, problem=problem, doubtful=foreign, warning_s=CREDENTIAL_WARNING_S
    )


def directory_credentials(name: str, directory: Path) -> Iterator[Credential]:
    """Yield the tokens of a directory. All are offered: of several a dead one is left out if another is good."""
    try:
        files = [
            file
            for file in sorted(directory.iterdir())
            if file.is_file() and not file.name.startswith(".")
        ]
    except OSError as error:
        yield Credential(
            name, str(directory), problem=f"{directory}: {error.strerror}", doubtful=True
        )
        return
    found = [idtoken_credential(name, Secret(file=file)) for file in files]
    if not found:
        yield Credential(name, str(directory), problem=f"no token in {directory}", doubtful=True)
    good = [each for each in found if not each.is_dead(time.time())]
    yield from good or found


def token_warnings(
    name: str, secret: Secret, needs: Collection[str], most: Collection[str] = ()
) -> Iterator[str]:
    """Yield what is odd in a token. It ``needs`` each of these scopes (or one of ``A or B``), ``most`` no other."""
    try:
        mode = stat.S_IMODE(secret.file.stat().st_mode) if secret.file is not None else 0
        if mode & 0o077:
            yield f"`{name}`: {secret} can be read by others (mode {mode:04o}). Run `chmod 600`"
        token = read_token(secret.read())
    except (OSError, SecretUnreadableError, InvalidTokenError):
        return
    subject = f"`{name}`: the token of {token.subject}"
    lacks = (
        each
        for each in needs
        if token.scopes is not None and token.scopes.isdisjoint(each.split(" or "))
    )
    if missing := list(lacks):
        yield f"{subject} is not good for {', '.join(missing)}. Make one with these `-authz`"
    if most and token.scopes is None:
        yield f"{subject} has no limits, and jobs may read it. Make one with `-authz {' -authz '.join(most)}` alone"
    elif most and token.scopes is not None and (more := sorted(token.scopes - set(most))):
        yield f"{subject} is also good for {', '.join(more)}, which no drone needs"


def explain_token(secret: Secret, issuer: str, now: float) -> str:
    """Return why the pool may refuse to authenticate us, as far as the token itself tells."""
    found = [
        credential_trouble(idtoken_credential("token", secret, issuer), now),
        *token_warnings("token", secret, ()),
    ]
    return (
        "; ".join(filter(None, found))
        or "the token looks right: is its key the pool's own, and its identity allowed?"
    )


DRONE_NEEDS = ("READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER")
"""Rights that a drone needs at the collector, and no other."""
_SCRAMBLE = bytes.fromhex("deadbeef")
# the collector's clock may be behind ours by this much: it refuses a token of the future
_EARLIER_S = 60.0


@frozen
class TokenSigner:
    """A signing key of the pool."""

    file: Path
    key_id: str
    trust_domain: str

    def token(self, user: str, now: float, lifetime_s: float) -> str:
        """Return a drone's token that is good for ``lifetime_s``. SecretUnreadableError if the key cannot be read."""
        try:
            content = self.file.read_bytes()
        except OSError as error:
            raise SecretUnreadableError(
                f"signing key {self.file} cannot be read: {error.strerror}"
            ) from None
        if not content:
            raise SecretUnreadableError(f"signing key {self.file} is empty")
        claims = {
            "exp": int(now + lifetime_s),
            "iat": int(now - _EARLIER_S),
            "iss": self.trust_domain,
            "jti": secrets.token_hex(16),
            "scope": " ".join(f"condor:/{each}" for each in DRONE_NEEDS),
            "sub": f"{user}@{self.trust_domain}",
        }
        parts = ({"alg": "HS256", "kid": self.key_id}, claims)
        signed = ".".join(
            _base64(json.dumps(each, separators=(",", ":"), sort_keys=True).encode())
            for each in parts
        )
        password = bytes(byte ^ _SCRAMBLE[at % len(_SCRAMBLE)] for at, byte in enumerate(content))
        extracted = hmac.digest(
            b"htcondor", password * (2 if self.key_id == "POOL" else 1), hashlib.sha256
        )
        key = hmac.digest(extracted, b"master jwt\x01", hashlib.sha256)
        return f"{signed}.{_base64(hmac.digest(key, signed.encode(), hashlib.sha256))}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


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
# a startd behind CCB calls the tool back; without own daemons no shared port daemon could take that call
USE_SHARED_PORT = False
UID_DOMAIN = client.invalid
FILESYSTEM_DOMAIN = client.invalid
{more}
"""
"""Nothing is taken from the host: the controller may stand on a machine that belongs to another pool."""


_PLAIN_IDENTITY = re.compile(r"[A-Za-z0-9._+-]+@[A-Za-z0-9._-]+")


class ClientDirectory:
    """A directory of mode 0700 with copies of our tokens: HTCondor ignores a token file of another user."""

    def __init__(
        self,
        whose: str,
        config: HTCondorConfig | HTCondorSiteConfig,
        token: Callable[[], str] | None = None,
    ) -> None:
        """``whose``: the pool, for messages. ``token``: read in place of the tokens of ``config``."""
        self._whose = whose
        self._read = token or (config.token.read if config.token else None)
        self._token_directory = None if token else config.token_directory
        self.path = Path(tempfile.mkdtemp(prefix="provisioner-condor-"))
        self._tokens = self.path / "tokens"
        self._text = CLIENT_CONFIG.format(
            home=self.path,
            tokens=self._tokens,
            collector=config.collector,
            more=config.client_config,
        )
        if os.geteuid() == 0:  # a tool of root asks for an account `condor` before it writes a log
            self._text += "CONDOR_IDS = 0.0\n"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a client: ours, without anything that HTCondor would listen to but this directory."""
        kept = {
            k: v for k, v in os.environ.items() if not k.upper().startswith(("CONDOR", "_CONDOR"))
        }
        return kept | {"CONDOR_CONFIG": str(self.path / "condor_config")}

    def refresh(self) -> None:
        """Copy the tokens as they are now. AuthError if none can be read, UnavailableError without a place."""
        wanted = self._wanted()
        try:
            # Hosts tidy up what is old in their directory for temporary files: it may be somebody
            # else's now.
            self.path.mkdir(mode=0o700, exist_ok=True)
            if self.path.lstat().st_uid != os.geteuid() or self.path.is_symlink():
                raise PermissionError(errno.EACCES, "it belongs to somebody else")
            self._tokens.mkdir(mode=0o700, exist_ok=True)
            config = self.path / "condor_config"
            if not config.exists():
                config.write_text(self._text)
            there = {file.name: file for file in self._tokens.iterdir()}
            for name in wanted.keys() | there.keys():
                if name not in wanted:
                    there[name].unlink()
                elif name not in there or there[name].read_text() != wanted[name]:
                    fresh = self._tokens / f".{name}.new"
                    fresh.touch(mode=0o600)
                    fresh.write_text(wanted[name])
                    fresh.replace(self._tokens / name)
        except OSError as error:
            raise UnavailableError(
                f"the HTCondor client's own directory {self.path}: {error.strerror}"
            ) from None

    def identities(self, issuer: str) -> tuple[str, ...]:
        """Return the identities that our tokens of ``issuer`` name, sorted; none if no token can be read."""
        found = set()
        with contextlib.suppress(AuthError):
            for text in self._wanted().values():
                with contextlib.suppress(InvalidTokenError):
                    token = read_token(text)
                    if token.issuer == issuer and _PLAIN_IDENTITY.fullmatch(token.subject):
                        found.add(token.subject)
        return tuple(sorted(found))

    def _wanted(self) -> Mapping[str, str]:
        tokens: dict[str, str] = {}
        try:
            if self._read is not None:
                tokens["token"] = self._read() + "\n"
            if self._token_directory is not None:
                for file in sorted(self._token_directory.iterdir()):
                    if file.is_file() and not file.name.startswith("."):
                        tokens[f"d-{file.name}"] = file.read_text("utf-8-sig")
        except SecretUnreadableError as error:
            raise AuthError(f"token of {self._whose}: {error}", FaultKind.DENIED) from None
        except (OSError, UnicodeDecodeError) as error:
            raise AuthError(
                f"tokens of {self._whose} in {self._token_directory}: {error}"
            ) from None
        if not tokens:
            raise AuthError(f"no token in {self._token_directory}")
        return tokens

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
