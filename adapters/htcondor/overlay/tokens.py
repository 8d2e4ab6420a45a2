"""Tokens for drones, signed with the pool's signing key: IDTOKENS, as HTCondor's ``condor_token_create`` makes them.

A token is a JSON Web Token (HS256). HTCondor derives the key of the signature from the content of the key file
(``condor_auth_passwd.cpp``): the content is unscrambled, that of the key ``POOL`` is taken twice, and HKDF makes 32
bytes of it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioner.config.units import SecretUnreadable
from provisioner.model import DroneId

AUTHORIZATIONS = ("READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER")
"""Rights that a drone needs at the collector, and no other."""
_SCRAMBLE = bytes.fromhex("deadbeef")
_EARLIER_S = 60.0
"""The collector's clock may be behind ours by this much: it refuses a token of the future."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The pool's signing key ``key_id`` in ``file``, and the pool's trust domain."""

    file: Path
    key_id: str
    trust_domain: str

    def token(self, user: str, now: float, lifetime_s: float) -> str:
        """Return a token of ``user@trust_domain`` for a drone that is good for ``lifetime_s`` from ``now`` on.

        Raises:
            SecretUnreadable: the key cannot be read, or is empty.
        """
        try:
            content = self.file.read_bytes()
        except OSError as error:
            raise SecretUnreadable(f"signing key {self.file} cannot be read: {error.strerror}") from None
        if not content:
            raise SecretUnreadable(f"signing key {self.file} is empty")
        claims = {
            "exp": int(now + lifetime_s),
            "iat": int(now - _EARLIER_S),
            "iss": self.trust_domain,
            "jti": secrets.token_hex(16),
            "scope": " ".join(f"condor:/{each}" for each in AUTHORIZATIONS),
            "sub": f"{user}@{self.trust_domain}",
        }
        signed = f"{_encoded({'alg': 'HS256', 'kid': self.key_id})}.{_encoded(claims)}"
        return f"{signed}.{_base64(hmac.digest(_signing_key(content, self.key_id), signed.encode(), hashlib.sha256))}"


def user_of(pattern: str, drone_id: DroneId) -> str:
    """Return the user name of a drone's token: ``{drone}`` in ``pattern`` is its id."""
    return pattern.replace("{drone}", drone_id)


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
