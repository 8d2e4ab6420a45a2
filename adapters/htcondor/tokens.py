"""IDTOKENS of HTCondor: their content, and tokens for drones that are signed with the pool's signing key.

A token is a JSON Web Token (HS256), as HTCondor's ``condor_token_create`` makes it. The signature of one that we read
is for the pool to check. HTCondor derives the key of the signature from the content of the key file
(``condor_auth_passwd.cpp``): the content is unscrambled, that of the key ``POOL`` is taken twice, and HKDF makes 32
bytes of it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from adapters.shared.printing import printable
from provisioner.config.units import Secret, SecretUnreadableError

_SCOPE = "condor:/"
EXPIRY_WARNING_S = 7 * 86400.0
"""A token that expires within this time is worth a warning."""
_MAX_TOKEN = 20_000


@dataclass(frozen=True, slots=True)
class IdToken:
    """Claims of a token."""

    issuer: str
    subject: str
    scopes: frozenset[str] | None = None
    """Authorisations that it is limited to (``READ``); None: all that its identity has."""
    expires_at: float = 0.0
    """0: never."""

    def allows(self, wanted: str) -> bool:
        """Return whether its scopes do not exclude ``wanted``, or one of ``A or B``."""
        return self.scopes is None or not self.scopes.isdisjoint(wanted.split(" or "))


class InvalidTokenError(ValueError):
    """A text that is no IDTOKEN. The message says why, without the text."""


def read_token(text: str) -> IdToken:
    """Return the content of a token. Raise InvalidTokenError for any other text."""
    parts = text.strip().split(".")
    if len(parts) != 3 or len(text) > _MAX_TOKEN:
        raise InvalidTokenError("not three parts joined by dots")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        issuer, subject = claims["iss"], claims["sub"]
        scope, expires = claims.get("scope"), claims.get("exp", 0)
    except KeyError as error:
        raise InvalidTokenError(f"no claim {error}") from None
    except (ValueError, TypeError, AttributeError):
        raise InvalidTokenError("its content is not JSON") from None
    if not isinstance(issuer, str) or not isinstance(subject, str):
        raise InvalidTokenError("issuer and subject are no texts")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires < 1e11:
        raise InvalidTokenError("its expiry is no time")
    scopes = frozenset(w.removeprefix(_SCOPE) for w in scope.split()) if isinstance(scope, str) and scope else None
    return IdToken(printable(issuer, 200), printable(subject, 200), scopes, float(expires))


def token_failures(name: str, secret: Secret, now: float) -> Iterator[str]:
    """Yield why the token in ``secret`` certainly cannot be used now. Unreadable tokens are reported elsewhere."""
    try:
        token = read_token(secret.read())
    except SecretUnreadableError:
        return
    except InvalidTokenError as error:
        yield f"`{name}`: no IDTOKEN: {error}. Write the output of `condor_token_create` into {secret}"
        return
    if token.expires_at and token.expires_at <= now:
        yield f"`{name}`: the token of {token.subject} expired at {_iso(token.expires_at)}. Make a new one"


def token_warnings(
    name: str, secret: Secret, now: float, issuer: str, needs: Collection[str], most: Collection[str] = ()
) -> Iterator[str]:
    """Yield what is odd in the token in ``secret``.

    That is the file mode, the issuer, missing scopes (``needs``: each, or one of ``A or B``), an expiry that is near
    and, with ``most``, scopes beyond those.
    """
    if secret.file is not None:
        try:
            mode = secret.file.stat().st_mode
        except OSError:
            return
        if stat.S_IMODE(mode) & 0o077:
            yield f"`{name}`: {secret} can be read by others (mode {stat.S_IMODE(mode):04o}). Run `chmod 600`"
    try:
        token = read_token(secret.read())
    except (SecretUnreadableError, InvalidTokenError):
        return
    if issuer and token.issuer != issuer:
        yield f"`{name}`: the token's issuer is {token.issuer}, not `trust_domain` {issuer}: the pool may not know it"
    subject = f"`{name}`: the token of {token.subject}"
    if missing := [each for each in needs if not token.allows(each)]:
        yield f"{subject} is not good for {', '.join(missing)}. Make one with these `-authz`"
    if most and token.scopes is None:
        yield f"{subject} has no limits, and jobs may read it. Make one with `-authz {' -authz '.join(most)}` alone"
    elif most and token.scopes is not None and (more := sorted(token.scopes - set(most))):
        yield f"{subject} is also good for {', '.join(more)}, which no drone needs"
    if token.expires_at and now < token.expires_at < now + EXPIRY_WARNING_S:
        yield f"{subject} expires soon, at {_iso(token.expires_at)}"


def explain_token(secret: Secret, issuer: str, now: float) -> str:
    """Return why the pool may refuse to authenticate us, as far as the token itself tells; empty if it cannot."""
    try:
        token = read_token(secret.read())
    except SecretUnreadableError:
        return ""
    except InvalidTokenError as error:
        return f"{secret} holds no IDTOKEN ({error})"
    if token.expires_at and token.expires_at <= now:
        return f"our token expired at {_iso(token.expires_at)}"
    if token.issuer != issuer:
        return f"our token's issuer is {token.issuer}, not {issuer}"
    return f"our {describe_token(token, now)}; it looks right: is its key the pool's own, and its identity allowed?"


def describe_token(token: IdToken, now: float) -> str:
    """Return identity, issuer, scopes and expiry in one line."""
    scopes = "all that it may do" if token.scopes is None else ", ".join(sorted(token.scopes)) or "nothing"
    ends = "without expiry"
    if token.expires_at:
        ends = f"{'expired' if token.expires_at <= now else 'expires'} {_iso(token.expires_at)}"
    return f"token of {token.subject}, issuer {token.issuer}, good for {scopes}, {ends}"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


DRONE_NEEDS = ("READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER")
"""Rights that a drone needs at the collector, and no other."""
_SCRAMBLE = bytes.fromhex("deadbeef")
_EARLIER_S = 60.0
"""The collector's clock may be behind ours by this much: it refuses a token of the future."""


@dataclass(frozen=True, slots=True)
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
            raise SecretUnreadableError(f"signing key {self.file} cannot be read: {error.strerror}") from None
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
        header = {"alg": "HS256", "kid": self.key_id}
        signed = f"{_encoded(header)}.{_encoded(claims)}"
        return f"{signed}.{_base64(hmac.digest(_signing_key(content, self.key_id), signed.encode(), hashlib.sha256))}"


def _signing_key(content: bytes, key_id: str) -> bytes:
    password = bytes(byte ^ _SCRAMBLE[at % len(_SCRAMBLE)] for at, byte in enumerate(content))
    if key_id == "POOL":
        password += password
    extracted = hmac.digest(b"htcondor", password, hashlib.sha256)
    return hmac.digest(extracted, b"master jwt\x01", hashlib.sha256)


def _encoded(claims: Mapping[str, object]) -> str:
    return _base64(json.dumps(claims, separators=(",", ":"), sort_keys=True).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
