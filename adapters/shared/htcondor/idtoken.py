"""The content of an IDTOKEN: issuer, identity, scopes and expiry. Its signature is for the pool to check."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from adapters.shared.printing import printable
from provisioner.config.units import Secret, SecretUnreadable

_SCOPE = "condor:/"
SOON_S = 7 * 86400.0
"""A token that expires within this time is worth a warning."""
_LONGEST = 20_000


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


class NoToken(ValueError):
    """A text that is no IDTOKEN; the message says why, without the text."""


def read(text: str) -> IdToken:
    """Return the content of a token. Raises :class:`NoToken`."""
    parts = text.strip().split(".")
    if len(parts) != 3 or len(text) > _LONGEST:
        raise NoToken("not three parts joined by dots")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        issuer, subject = claims["iss"], claims["sub"]
        scope, expires = claims.get("scope"), claims.get("exp", 0)
    except KeyError as error:
        raise NoToken(f"no claim {error}") from None
    except (ValueError, TypeError, AttributeError):
        raise NoToken("its content is not JSON") from None
    if not isinstance(issuer, str) or not isinstance(subject, str):
        raise NoToken("issuer and subject are no texts")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 <= expires < 1e11:
        raise NoToken("its expiry is no time")
    scopes = frozenset(w.removeprefix(_SCOPE) for w in scope.split()) if isinstance(scope, str) and scope else None
    return IdToken(printable(issuer, 200), printable(subject, 200), scopes, float(expires))


def failures(name: str, secret: Secret, now: float) -> Iterator[str]:
    """Yield why the token in ``secret`` certainly cannot be used now. Unreadable tokens are reported elsewhere."""
    try:
        token = read(secret.read())
    except SecretUnreadable:
        return
    except NoToken as error:
        yield f"`{name}`: no IDTOKEN: {error}. Write the output of `condor_token_create` into {secret}"
        return
    if token.expires_at and token.expires_at <= now:
        yield f"`{name}`: the token of {token.subject} expired at {_iso(token.expires_at)}. Make a new one"


def doubts(
    name: str, secret: Secret, now: float, issuer: str, needs: Collection[str], most: Collection[str] = ()
) -> Iterator[str]:
    """Yield what is odd in the token in ``secret``: file mode, issuer, missing scopes (``needs``: each, or one of
    ``A or B``) and, with ``most``, scopes beyond those, or an expiry that is near."""
    if secret.file is not None:
        try:
            mode = secret.file.stat().st_mode
        except OSError:
            return
        if stat.S_IMODE(mode) & 0o077:
            yield f"`{name}`: {secret} can be read by others (mode {stat.S_IMODE(mode):04o}). Run `chmod 600`"
    try:
        token = read(secret.read())
    except (SecretUnreadable, NoToken):
        return
    if issuer and token.issuer != issuer:
        yield f"`{name}`: the token's issuer is {token.issuer}, not `trust_domain` {issuer}: the pool may not know it"
    missing = [each for each in needs if not token.allows(each)]
    if missing:
        lacks = f"`{name}`: the token of {token.subject} is not good for {', '.join(missing)}"
        yield f"{lacks}. Make one with these `-authz`"
    if most and token.scopes is None:
        yield (
            f"`{name}`: the token of {token.subject} has no limits, and jobs may read it. Make one with `-authz "
            f"{' -authz '.join(most)}` alone"
        )
    elif most and token.scopes is not None and (more := sorted(token.scopes - set(most))):
        yield f"`{name}`: the token of {token.subject} is also good for {', '.join(more)}, which no drone needs"
    if token.expires_at and now < token.expires_at < now + SOON_S:
        yield f"`{name}`: the token of {token.subject} expires soon, at {_iso(token.expires_at)}"


def blamed(secret: Secret, issuer: str, now: float) -> str:
    """Return why the pool may refuse to authenticate us, as far as the token itself tells; empty if it cannot."""
    try:
        token = read(secret.read())
    except SecretUnreadable:
        return ""
    except NoToken as error:
        return f"{secret} holds no IDTOKEN ({error})"
    if token.expires_at and token.expires_at <= now:
        return f"our token expired at {_iso(token.expires_at)}"
    if token.issuer != issuer:
        return f"our token's issuer is {token.issuer}, not {issuer}"
    return f"our {in_words(token, now)}; it looks right: is its key the pool's own, and its identity allowed?"


def in_words(token: IdToken, now: float) -> str:
    """Return identity, issuer, scopes and expiry in one line."""
    scopes = "all that it may do" if token.scopes is None else ", ".join(sorted(token.scopes)) or "nothing"
    ends = "without expiry"
    if token.expires_at:
        ends = f"{'expired' if token.expires_at <= now else 'expires'} {_iso(token.expires_at)}"
    return f"token of {token.subject}, issuer {token.issuer}, good for {scopes}, {ends}"


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
