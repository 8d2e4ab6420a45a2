"""Credentials as facts: source, identity, scopes and expiry of tokens, keys and certificates, and never a secret.

Every :class:`~provisioner.config.units.Secret` in the options of an adapter is one; JSON Web Tokens
are recognised by their form. Options that know more of theirs have a method ``credentials()``,
which returns :class:`~provisioner.model.Credential` values with the names of their keys.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from provisioner.config.units import Secret, SecretUnreadableError
from provisioner.formatting import iso, sanitize
from provisioner.interfaces import SupportsCredentials
from provisioner.model import CREDENTIAL_WARNING_S, Credential

SHORT_LIFE_S = 36 * 3600.0
"""A credential that lives no longer is renewed by a program, not by people."""
MAX_TOKEN_CHARS = 20_000
_MAX_CREDENTIAL_BYTES = 4 << 20


def credentials_of(options: BaseModel) -> Iterator[Credential]:
    """Yield the credentials that options name, as they are now, with dotted names."""
    own = tuple(options.credentials()) if isinstance(options, SupportsCredentials) else ()
    yield from own
    told = {each.name for each in own}
    for name, value in options:
        if name not in told:
            yield from _credentials_in(name, value)


def _credentials_in(name: str, value: object) -> Iterator[Credential]:
    """Yield the credentials in one option: a secret, a section, or a mapping of secrets."""
    if isinstance(value, Secret):
        yield secret_credential(name, value)
    elif isinstance(value, BaseModel):
        for each in credentials_of(value):
            yield replace(each, name=f"{name}.{each.name}")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _credentials_in(f"{name}.{key}", each)


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
    begins = begins or min(issued, time.time())
    found = replace(found, scopes=tuple(sorted(_plain(each) for each in scopes)))
    return _dated(found, text.encode(), claims.get("sub") or claims.get("sun"), begins, ends)


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


def _from_file(
    name: str, path: Path, read: Callable[[Credential, bytes], Credential]
) -> Credential:
    found = Credential(name, f"file {path}")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CREDENTIAL_BYTES)
    except OSError as error:
        return replace(
            found, problem=f"{found.source} cannot be read: {error.strerror}", doubtful=True
        )
    return read(found, content)


def pem_credential(found: Credential, content: bytes, *, last: bool = False) -> Credential:
    """Return ``found`` with what the certificates of a PEM text say; ``last``: one that is good is enough."""
    from cryptography import x509  # not at the start of every command

    try:
        with warnings.catch_warnings(action="ignore"):  # of certificates that OpenSSL accepts
            chain = x509.load_pem_x509_certificates(content)
        names = chain[0].subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    except ValueError:
        return replace(found, problem="no certificate in PEM form, or a damaged one")
    decides = (max if last else min)(chain, key=lambda each: each.not_valid_after_utc)
    begins = decides.not_valid_before_utc.timestamp()
    ends = decides.not_valid_after_utc.timestamp()
    return _dated(found, content, names[-1].value if names else "", begins, ends)


def _ssh_certificate(found: Credential, content: bytes) -> Credential:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        SSHCertificate,
        load_ssh_public_identity,
    )

    try:
        signed = load_ssh_public_identity(content)
    except UnsupportedAlgorithm:  # of a hardware key: its end is unknown
        return found
    except ValueError:
        signed = None
    if not isinstance(signed, SSHCertificate):
        return replace(found, problem="no OpenSSH certificate")
    ends = 0 if signed.valid_before >= 1 << 62 else signed.valid_before
    return _dated(found, content, signed.key_id.decode(errors="replace"), signed.valid_after, ends)


def _dated(
    found: Credential, content: bytes, identity: object, begins: float, ends: float
) -> Credential:
    """Return ``found`` with its time of validity; an end of 0 is none. One of a short life is warned of late."""
    life_s = ends - begins
    is_short = begins and 0 < life_s <= SHORT_LIFE_S
    return replace(
        found,
        identity=_plain(identity),
        not_after=float(ends),
        problem=f"not valid before {iso(begins)}" if begins > time.time() else "",
        warning_s=life_s / 10 if is_short else CREDENTIAL_WARNING_S,
        fingerprint=hashlib.sha256(content).hexdigest()[:16],
    )


def _time(claim: object) -> float:
    """Return a time of a token; 0 without one. ValueError for what is none."""
    if claim is None:
        return 0.0
    if isinstance(claim, bool) or not isinstance(claim, int | float) or not 0 <= claim < 1e11:
        raise ValueError("its expiry is no time")
    return float(claim)


def _plain(text: object) -> str:
    return sanitize(str(text), 200) if text else ""
