"""Bearer tokens: JSON Web Tokens of the WLCG profile and SciTokens, verified with the keys of their issuers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog
from aiohttp import web

from provisioner.config.models import Role, WebTokenSection, is_loopback
from provisioner.formatting import sanitize

log = structlog.get_logger()

KEYS_KEPT_S = 3600.0
"""The keys of an issuer are fetched again after this time."""
KEYS_RETRY_S = 60.0
"""For a key that is not known, or after a failure, they are fetched at most this often: anybody can invent key ids."""
KEYS_LOST_S = 86400.0
"""Keys of an issuer that does not answer are used for this long."""
FETCH_TIMEOUT_S = 10.0
KNOWN_WAIT_S = 1.0
"""For newer keys, a token with a known key waits this long."""
_NOT_AS_EXPECTED = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors in documents of another form: among them numbers without end, and lists in lists."""
ALGORITHMS = ("RS256", "ES256")
"""Algorithms of signatures in the WLCG profile."""
MAX_AGE_S = 6 * 3600.0
"""A token that was issued longer ago is refused, even if it has not expired."""
ROLES = {"compute.read": Role.READ, "compute.modify": Role.OPERATE, "compute.cancel": Role.OPERATE}
"""Roles by scope."""
LEEWAY_S = 30.0
"""Difference between the clocks of issuer and service that is accepted."""


def _refused(why: str) -> web.HTTPUnauthorized:
    challenge = 'Bearer error="invalid_token"'
    return web.HTTPUnauthorized(
        text=f"token refused: {sanitize(why, 300)}", headers={"WWW-Authenticate": challenge}
    )


class IssuerKeys:
    """Public keys of one issuer by id, found by OpenID discovery."""

    def __init__(self, issuer: str, session: aiohttp.ClientSession) -> None:
        self._issuer = issuer
        self._session = session
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried_at = self._fetched_at = float("-inf")
        self._fetching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fetching.set_result(None)

    async def key(self, key_id: str | None) -> jwt.PyJWK:
        """Return a key; that of a token without an id is the only one. Raises :class:`aiohttp.web.HTTPException`.

        A key that is known waits for no answer of the issuer: anybody can have one asked for.
        """
        now = time.monotonic()
        known = self._find(key_id) is not None and now - self._fetched_at <= KEYS_LOST_S
        if known and now - self._fetched_at <= KEYS_KEPT_S:
            return self._known(key_id)
        if self._fetching.done() and now - self._tried_at > KEYS_RETRY_S:
            self._tried_at = now
            self._fetching = asyncio.ensure_future(self._fetch())
        await asyncio.wait([self._fetching], timeout=KNOWN_WAIT_S if known else None)
        return self._known(key_id)

    def _known(self, key_id: str | None) -> jwt.PyJWK:
        lost = time.monotonic() - self._fetched_at > KEYS_LOST_S
        key = self._find(key_id)
        if lost:
            raise web.HTTPServiceUnavailable(
                text=f"the keys of {self._issuer} cannot be fetched; try again later"
            )
        if key is None:
            raise _refused(f"{self._issuer} has no key `{key_id}`")
        return key

    def _find(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id or "")

    def cancel(self) -> None:
        """Wait for the issuer no longer."""
        self._fetching.cancel()

    async def _fetch(self) -> None:
        """Fetch the keys; if that fails the known ones stay."""
        try:
            found = await self._document(
                f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
            )
            if found["issuer"] != self._issuer:
                raise ValueError(f"its discovery document is of issuer {found['issuer']}")
            keys = jwt.PyJWKSet.from_dict(await self._document(found["jwks_uri"])).keys
        except (
            aiohttp.ClientError,
            TimeoutError,
            LookupError,
            *_NOT_AS_EXPECTED,
            jwt.PyJWTError,
        ) as error:
            why = f"{type(error).__name__}: {error}"
            log.warning("issuer.fetch_failed", issuer=self._issuer, why=sanitize(why, 300))
            return
        self._keys, self._fetched_at = {key.key_id or "": key for key in keys}, time.monotonic()

    async def _document(self, url: str) -> Any:
        parts = urlsplit(url)
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise ValueError(f"{url} is not https")
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise ValueError(f"{url} answers with status {response.status}")
            return await response.json(content_type=None)


class TokenVerifier:
    """Verifier of the tokens of all accepted issuers. Use it as an asynchronous context."""

    def __init__(self, sections: Sequence[WebTokenSection]) -> None:
        self._sections = {section.issuer: section for section in sections}
        self._keys: dict[str, IssuerKeys] = {}

    async def __aenter__(self) -> TokenVerifier:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(FETCH_TIMEOUT_S), trust_env=True
        )
        self._keys = {issuer: IssuerKeys(issuer, self._session) for issuer in self._sections}
        return self

    async def __aexit__(self, *exc: object) -> None:
        for keys in self._keys.values():
            keys.cancel()
        await self._session.close()

    async def verify(self, token: str) -> tuple[str, Role | None, float]:
        """Return subject, role and end of a token. Raises :class:`aiohttp.web.HTTPException` if it is refused."""
        try:
            header = jwt.get_unverified_header(token)
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, *_NOT_AS_EXPECTED):  # ValueError: bytes that are no text
            raise _refused("it is no JSON Web Token") from None
        section = self._sections.get(issuer) if isinstance(issuer, str) else None
        if section is None:
            raise _refused(f"issuer `{issuer}` is not accepted")
        if header.get("alg") not in ALGORITHMS:
            raise _refused(f"algorithm `{header.get('alg')}` is not accepted")
        key = await self._keys[section.issuer].key(header.get("kid"))
        try:
            claims = jwt.decode(
                token,
                key.key,  # alone it has no algorithm: issuers may leave it out
                algorithms=[header["alg"]],
                audience=section.audience,
                issuer=section.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
            name = f"{sanitize(str(claims['sub']), 120)} of {section.issuer}"
            return name, _role(claims), float(claims["exp"]) + LEEWAY_S
        except (jwt.PyJWTError, *_NOT_AS_EXPECTED) as error:
            # TypeError: a key of another algorithm
            raise _refused(str(error)) from None


def _role(claims: dict[str, Any]) -> Role | None:
    if time.time() - float(claims["iat"]) > MAX_AGE_S + LEEWAY_S:
        raise _refused("it was issued too long ago")
    for claim, known in (("wlcg.ver", "1."), ("ver", "scitoken")):
        if not str(claims.get(claim, known)).lower().startswith(known):
            raise _refused(f"version `{claims[claim]}` of its profile is not known")
    return Role.highest(ROLES.get(scope) for scope in str(claims.get("scope", "")).split())
