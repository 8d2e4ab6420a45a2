"""An issuer of SciTokens, and a computing element that trusts it."""

from __future__ import annotations

import base64
import json
import sqlite3
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER = "https://issuer.test/"
SUBJECT = "drones"
_DAY_S = 86400


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class Signer:
    """The key of an issuer."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)

    def keys(self) -> Mapping[str, object]:
        """Return what the issuer publishes."""
        public = self._key.public_key().public_numbers()
        one = {"kty": "RSA", "kid": "k1", "n": _number(public.n), "e": _number(public.e)}
        return {"keys": [{**one, "use": "sig", "alg": "RS256"}]}

    def token(self, lifetime_s: int = _DAY_S, **claims: str) -> str:
        """Return a token with these claims; a negative lifetime is over."""
        now = int(time.time())
        times = {"iat": now - 3600, "nbf": now - 3600, "exp": now + lifetime_s}
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "k1"}, {"jti": "1", **times, **claims})
        text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_encoded(signature)}"


class Issuer(Signer):
    """An issuer that nobody has to ask: its keys are in the element's cache, as if they had been fetched."""

    def __init__(self, directory: Path, account: str) -> None:
        """``account``: the user of the element that its subject is mapped to."""
        super().__init__()
        self.directory = directory
        directory.mkdir()
        _write_host_certificate(directory)
        (directory / "map").write_text(f"SCITOKENS {ISSUER},{SUBJECT} {account}\n")
        cache = directory / "cache/scitokens"
        cache.mkdir(parents=True)
        now = int(time.time())
        kept = {"jwks": self.keys(), "next_update": now + _DAY_S, "expires": now + 2 * _DAY_S}
        file = cache / "scitokens_cpp.sqllite"  # codespell:ignore sqllite
        with sqlite3.connect(file) as keys:
            keys.execute("CREATE TABLE keycache (issuer text UNIQUE PRIMARY KEY, keys text)")
            keys.execute("INSERT INTO keycache VALUES (?, ?)", (ISSUER, json.dumps(kept)))

    def scitoken(self, lifetime_s: int = _DAY_S, **claims: str) -> str:
        """Return a token that an element takes, with its claims replaced."""
        scope = "condor:/READ condor:/WRITE"
        usual = {"iss": ISSUER, "sub": SUBJECT, "aud": "ANY", "ver": "scitoken:2.0", "scope": scope}
        return self.token(lifetime_s, **{**usual, **claims})

    @property
    def element(self) -> str:
        """Configuration of the element."""
        return f"""
SEC_DEFAULT_AUTHENTICATION_METHODS = SCITOKENS, IDTOKENS
SEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS
AUTH_SSL_SERVER_CERTFILE = {self.directory}/host.pem
AUTH_SSL_SERVER_KEYFILE = {self.directory}/host.key
AUTH_SSL_SERVER_CAFILE = {self.directory}/host.pem
SEC_SCITOKENS_CACHE = {self.directory}/cache
CERTIFICATE_MAPFILE = {self.directory}/map
"""

    @property
    def access_point(self) -> str:
        """Configuration of the access point, which knows the element by an address without a name."""
        return f"""
SEC_CLIENT_AUTHENTICATION_METHODS = SCITOKENS, IDTOKENS
AUTH_SSL_CLIENT_CAFILE = {self.directory}/host.pem
SSL_SKIP_HOST_CHECK = True
"""


def _write_host_certificate(directory: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ce.test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (directory / "host.pem").write_bytes(certificate.public_bytes(pem))
    (directory / "host.key").touch(mode=0o600)
    (directory / "host.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
