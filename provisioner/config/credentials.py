"""Credentials as facts: source, identity, scopes and expiry of tokens, keys and certificates, and never a secret.

Every :class:`~provisioner.config.units.Secret` in the options of an adapter is one; JSON Web Tokens are recognised by
their form. Options that know more of theirs have a method ``credentials()``, which returns
:class:`~provisioner.model.Credential` values with the names of their keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from provisioner.config.units import Secret, SecretUnreadableError
from provisioner.formatting import iso, sanitize
from provisioner.model import CREDENTIAL_WARNING_S, Credential

SHORT_LIFE_S = 36 * 3600.0
"""A credential that lives no longer is renewed by a program, not by people."""
MAX_TOKEN_CHARS = 20_000
_MAX_CREDENTIAL_BYTES = 4 << 20
_PEM = re.compile(rb"-----BEGIN (CERTIFICATE|TRUSTED CERTIFICATE)-----(.+?)-----END \1-----", re.DOTALL)
_COMMON_NAME = b"\x06\x03\x55\x04\x03"
"""The object identifier of `commonName`, as DER."""
_SSH_KEY_FIELDS = {"ssh-rsa": 2, "ssh-dss": 4, "ssh-ed25519": 1, "sk-ssh-ed25519": 2, "ecdsa": 2, "sk-ecdsa": 3}
"""Fields of a key before the rest of an OpenSSH certificate (PROTOCOL.certkeys), by the beginning of its type."""


def credentials_of(options: BaseModel) -> Iterator[Credential]:
    """Yield the credentials that options name, as they are now, with dotted names."""
    own: Sequence[Credential] = tuple(getattr(options, "credentials", tuple)())
    yield from own
    told = {each.name for each in own}
    for name, value in options:
        if isinstance(value, Secret) and name not in told:
            yield secret_credential(name, value)
        elif isinstance(value, BaseModel) and not isinstance(value, Secret):
            for each in credentials_of(value):
                yield replace(each, name=f"{name}.{each.name}")


def secret_credential(name: str, secret: Secret, *, is_jwt: bool = False) -> Credential:
    """Return a secret as a credential. One that ``is_jwt`` and is none has a problem."""
    found = Credential(name, str(secret))
    try:
        text = secret.read()
    except SecretUnreadableError as error:
        return replace(found, problem=str(error), doubtful=True)
    return token_credential(found, text, is_jwt=is_jwt)


def token_credential(found: Credential, text: str, *, is_jwt: bool = True) -> Credential:
    """Return ``found`` with what the claims of a token say."""
    try:
        claims = jwt_claims(text.removeprefix("SLURM_JWT="))  # as `scontrol token` prints it
    except ValueError as error:
        return replace(found, problem=f"no JSON Web Token: {error}") if is_jwt else found
    try:
        begins, issued, ends = (_time(claims.get(key)) for key in ("nbf", "iat", "exp"))
    except ValueError as error:
        return replace(found, problem=str(error))
    scope = claims.get("scope") or claims.get("scp") or ()
    scopes = scope.split() if isinstance(scope, str) else scope if isinstance(scope, list) else ()
    return replace(
        found,
        identity=_plain(claims.get("sub") or claims.get("sun")),
        scopes=tuple(sorted(_plain(each) for each in scopes)),
        not_after=ends,
        problem=_early(begins),
        warning_s=_warning_s(begins or issued, ends),
        fingerprint=fingerprint(text.encode()),
    )


def jwt_claims(text: str) -> Mapping[str, Any]:
    """Return the claims of a JSON Web Token, whose signature is for others to check. ValueError for any other text."""
    parts = text.strip().split(".")
    if len(parts) != 3 or len(text) > MAX_TOKEN_CHARS:
        raise ValueError("not three parts joined by dots")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        raise ValueError("its content is not JSON") from None
    if not isinstance(claims, dict):
        raise ValueError("its content is no JSON object")
    return claims


def certificate_credential(name: str, path: Path) -> Credential:
    """Return an X.509 certificate or proxy with its chain: the first that ends decides."""
    return _from_file(name, path, pem_credential)


def authorities_credential(name: str, path: Path) -> Credential:
    """Return a file of authorities: the last that ends decides."""
    return _from_file(name, path, lambda found, content: pem_credential(found, content, last=True))


def ssh_credential(name: str, path: Path) -> Credential:
    """Return an OpenSSH certificate."""
    return _from_file(name, path, _ssh_certificate)


def secret_file_credential(name: str, path: Path) -> Credential:
    """Return a file with a key that has no expiry: it can be read and is not empty, or not."""

    def judged(found: Credential, content: bytes) -> Credential:
        return found if content.strip() else replace(found, problem=f"{found.source} is empty")

    return _from_file(name, path, judged)


def fingerprint(content: bytes) -> str:
    """Return the beginning of the SHA-256 of a token or certificate, by which a renewed one is recognised."""
    return hashlib.sha256(content).hexdigest()[:16]


def _from_file(name: str, path: Path, read: Callable[[Credential, bytes], Credential]) -> Credential:
    found = Credential(name, f"file {path}")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CREDENTIAL_BYTES)
    except OSError as error:
        return replace(found, problem=f"{found.source} cannot be read: {error.strerror}", doubtful=True)
    return read(found, content)


def pem_credential(found: Credential, content: bytes, *, last: bool = False) -> Credential:
    """Return ``found`` with what the certificates of a PEM text say; ``last``: one that is good is enough."""
    try:
        ders = [binascii.a2b_base64(body) for _, body in _PEM.findall(content)]
        chain = [_certificate(der) for der in ders]
    except (ValueError, IndexError):
        return replace(found, problem="its certificate is damaged")
    if not chain:
        return replace(found, problem="no certificate in PEM form")
    begins, ends, _ = (max if last else min)(chain, key=lambda each: each[1])
    return replace(
        found,
        identity=chain[0][2],
        not_after=ends,
        problem=_early(begins),
        warning_s=_warning_s(begins, ends),
        fingerprint=fingerprint(content),
    )


def _certificate(der: bytes) -> tuple[float, float, str]:
    """Return begin, end and subject (its last common name) of a certificate (RFC 5280). ValueError, IndexError."""
    fields = _der_items(_der_items(_der_items(der)[0][1])[0][1])
    version = fields[0][0] == 0xA0
    validity, subject = fields[3 + version][1], fields[4 + version][1]
    begins, ends = (_der_time(*each) for each in _der_items(validity))
    names = subject.split(_COMMON_NAME)[1:]
    return begins, ends, _plain(names[-1][2 : 2 + names[-1][1]].decode(errors="replace")) if names else ""


def _der_items(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each item in DER."""
    items, at = [], 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[at + 2 : start], "big")
        if start + size > len(data):
            raise ValueError("truncated")
        items.append((tag, data[start : start + size]))
        at = start + size
    return items


def _der_time(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == 0x17:  # UTCTime: two digits of the year
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _ssh_certificate(found: Credential, content: bytes) -> Credential:
    try:
        kind, data = content.split()[0].decode(), binascii.a2b_base64(content.split()[1])
        fields = _SSH_KEY_FIELDS[kind.partition("-cert-")[0].partition("-sha2")[0]]
        at = 0

        def take() -> bytes:
            nonlocal at
            size = int.from_bytes(data[at : at + 4], "big")
            at += 4 + size
            return data[at - size : at]

        for _ in range(2 + fields):  # type, nonce, key
            take()
        at += 12  # serial and kind
        identity, _ = take(), take()
        begins, ends = (int.from_bytes(data[at + n : at + n + 8], "big") for n in (0, 8))
        if at + 16 > len(data):
            raise ValueError("truncated")
    except (ValueError, LookupError):
        return replace(found, problem="no OpenSSH certificate")
    not_after = 0.0 if ends >= 1 << 62 else float(ends)
    return replace(
        found,
        identity=_plain(identity.decode(errors="replace")),
        not_after=not_after,
        problem=_early(begins),
        warning_s=_warning_s(begins, not_after),
        fingerprint=fingerprint(data),
    )


def _time(claim: object) -> float:
    """Return a time of a token; 0 without one. ValueError for what is none."""
    if claim is None:
        return 0.0
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim < 1e11:
        raise ValueError("its expiry is no time")
    return float(claim)


def _early(begins: float) -> str:
    return f"not valid before {iso(begins)}" if begins > time.time() else ""


def _warning_s(begins: float, ends: float) -> float:
    """Return how long before its end a credential is warned of."""
    life_s = ends - begins
    return life_s / 10 if begins and 0 < life_s <= SHORT_LIFE_S else CREDENTIAL_WARNING_S


def _plain(text: object) -> str:
    return sanitize(str(text), 200) if text else ""
