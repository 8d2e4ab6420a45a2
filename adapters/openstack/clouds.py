"""Access to a cloud: an entry of a clouds.yaml, or the credentials in the site file.

The file is read as openstacksdk reads it ("Configuring OpenStack SDK Applications"): the first one
found, a secure.yaml beside it laid over it, keys with ``-`` or ``_``. It differs in this: a file
that is named and not there, not readable or no YAML is an error, not passed over; the variables
``OS_*`` describe no cloud; what the adapter cannot do is refused and not ignored.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from adapters.shared.json_records import Record, mapping
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AuthError
from provisioner.model import FaultKind
from provisioner.values import frozen

if TYPE_CHECKING:
    from adapters.openstack.settings import CloudAccess

HTTP_URL = re.compile(r"https?://[^\s?#@]+")
_SUFFIXES = (".yaml", ".yml", ".json")
_VERSION = re.compile(r"/v(2\.0|3)$")
_APPLICATION_TYPE = "v3applicationcredential"
_PASSWORD_TYPES = ("password", "v3password")
_SECRET_KEYS = ("password", "application_credential_secret")
_NO_PROFILES = (
    "vendor profiles are not supported: write the profile's `auth_url` and the rest into the entry"
)
_NO_CERTIFICATES = "client certificates are not supported: use an application credential"
UNSUPPORTED = {
    "profile": _NO_PROFILES,
    "cloud": _NO_PROFILES,
    "cert": _NO_CERTIFICATES,
    "key": _NO_CERTIFICATES,
    "regions": "several regions in one entry are not supported: write `region_name`, or an entry for each",
}
"""Keys of an entry without which it means something else -> what to do instead."""


class NoAccessError(AuthError):
    """Missing or wrong access to a cloud; the message names file, entry, key and repair, and never the secret."""

    kind = FaultKind.CONFIG


@frozen
class Access:
    """Values needed to log in and to find the services."""

    auth_url: str
    """Ends in ``/v3``."""
    user: str
    """For people: who logs in."""
    secret: str = field(repr=False)
    identity: Record = field(repr=False)
    """``auth`` of POST /v3/auth/tokens (Identity API v3, "Authenticating with an Application
    Credential" and "Password authentication")."""
    source: str
    """For people: where it is written."""
    region: str = ""
    """Empty: the first of the catalogue."""
    interface: str = "public"
    verify: bool = True
    ca: Path | None = None


def read_access(settings: CloudAccess) -> Access:
    """Read the settings of a cloud with its secrets. Raises NoAccessError."""
    if settings.auth is None:
        return _EntryReader(*_entry(_found(settings.clouds_file), settings.cloud)).access(settings)
    entry = {
        "auth_url": settings.auth.url,
        "application_credential_id": settings.auth.application_credential_id,
    }
    try:
        entry["application_credential_secret"] = settings.auth.application_credential_secret.read()
    except SecretUnreadableError as error:
        raise NoAccessError(f"`auth`: `application_credential_secret`: {error}") from None
    return _EntryReader("`auth` of the site file", entry).access(settings)


def trusted_certificates(access: Access) -> ssl.SSLContext | bool:
    """Return the certificates to accept; False accepts any. Raises NoAccessError."""
    if not access.verify or access.ca is None:
        return access.verify
    try:
        return ssl.create_default_context(cafile=str(access.ca))
    except (OSError, ssl.SSLError) as error:
        raise NoAccessError(
            f"{access.source}: the authorities of {access.ca} cannot be read: {_why(error)}"
        ) from None


def access_problems(settings: CloudAccess) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what would not work on this host, without a call to it: path below the options, and message."""
    key = ("clouds_file",) if settings.clouds_file else ("cloud",)
    try:
        access = read_access(settings)
        key = ("ca",) if settings.ca else ("cloud",)
        trusted_certificates(access)
    except NoAccessError as error:
        if settings.auth is None or key == ("ca",):
            yield key, str(error)


def _found(named: Path | None) -> Path:
    if named is not None:
        return named
    if path_of_user := os.environ.get("OS_CLIENT_CONFIG_FILE", ""):
        return Path(path_of_user).expanduser()
    home = Path("~").expanduser()
    own = Path(os.environ.get("XDG_CONFIG_HOME", "") or home / ".config")
    places = dict.fromkeys(
        (Path.cwd(), own / "openstack", home / ".config/openstack", Path("/etc/openstack"))
    )
    for directory in places:
        for suffix in _SUFFIXES:
            if (path := directory / f"clouds{suffix}").exists():
                return path
    looked = ", ".join(map(str, places))
    raise NoAccessError(
        f"there is no clouds.yaml in {looked}: write one, or say which with `clouds_file: path`"
    )


def _entry(file: Path, name: str) -> tuple[str, Record]:
    """Return the place of the entry and its content, with secure.yaml laid over it."""
    clouds = _clouds(file)
    if name not in clouds:
        message = f"{file}: there is no cloud `{printable(name, 64)}` under `clouds`: {choices(name, clouds)}"
        raise NoAccessError(message)
    where = f"{file}: cloud `{printable(name, 64)}`"
    found: dict[str, Any] = {}
    if not isinstance(clouds[name], dict):
        raise NoAccessError(f"{where}: it says nothing: write `auth:` and the rest below it")
    secure = next(
        (path for suffix in _SUFFIXES if (path := file.with_name(f"secure{suffix}")).exists()), None
    )
    entries = [clouds[name], _clouds(secure).get(name) if secure is not None else None]
    # as openstacksdk has it, what stands beside `auth` comes before what stands in it
    for entry in entries:
        found |= mapping(entry, "auth")
    for entry in entries:
        found |= mapping(entry)
    return where, {
        str(key).replace("-", "_").replace("tenant_", "project_"): value
        for key, value in found.items()
    }


class _CloudsLoader(yaml.SafeLoader):
    """Every scalar is text: a secret of digits stays what it is. Merge keys are what else clouds.yamls are made of."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own name)
        "<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]
    }


def _clouds(file: Path) -> Record:
    """Return the entries under ``clouds`` in a file."""
    try:
        tree = yaml.load(file.read_text("utf-8-sig"), _CloudsLoader)
    except OSError as error:
        raise NoAccessError(f"{file}: it cannot be read: {_why(error)}") from None
    except yaml.MarkedYAMLError as error:
        # The message of the error quotes the file, and where a quote is forgotten what stands there may be the
        # secret.
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        message = (
            f"{file}{line}: not YAML here: indent alike, and quote texts with special characters"
        )
        raise NoAccessError(message) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise NoAccessError(f"{file}: not YAML") from None
    clouds = tree.get("clouds") if isinstance(tree, dict) else None
    if not isinstance(clouds, dict):
        raise NoAccessError(f"{file}: it has no `clouds`: write `clouds: {{NAME: {{auth: ...}}}}`")
    return {str(name): entry for name, entry in clouds.items()}


class _EntryReader:
    """One entry of a clouds.yaml."""

    def __init__(self, where: str, entry: Record) -> None:
        self._where = where
        self._entry = entry

    def access(self, settings: CloudAccess) -> Access:
        for key, instead in UNSUPPORTED.items():
            if self._entry.get(key):
                raise self._error(f"`{key}`: {instead}")
        if override := next(
            (key for key in self._entry if key.endswith("_endpoint_override")), None
        ):
            raise self._error(
                f"`{override}` is not supported: the catalogue says where services are"
            )
        auth_url = self._wanted(
            "auth_url", "Keystone's address, `https://keystone.example.org:5000/v3`"
        )
        if not HTTP_URL.fullmatch(auth_url):
            raise self._error(
                "`auth_url` is no address: write `https://keystone.example.org:5000/v3`"
            )
        interface = (self._text("interface") or self._text("endpoint_type")).removesuffix("URL")
        ca = self._text("cacert")
        user, secret, identity = self._user()
        return Access(
            auth_url=_VERSION.sub("", auth_url.rstrip("/")) + "/v3",
            user=user,
            secret=secret,
            identity=identity,
            source=self._where,
            region=settings.region or self._text("region_name"),
            interface=settings.interface or interface or "public",
            verify=settings.ca is not None
            or self._text("verify").lower() not in ("false", "no", "off", "0"),
            ca=settings.ca or (Path(ca).expanduser() if ca else None),
        )

    def _user(self) -> tuple[str, str, Record]:
        """Return who logs in, their secret, and the request that logs them in."""
        kind = (self._text("auth_type") or self._text("auth_plugin")).lower()
        if not kind:
            kind = (
                _APPLICATION_TYPE
                if "application_credential_secret" in self._entry
                else _PASSWORD_TYPES[0]
            )
        if kind == _APPLICATION_TYPE:
            secret = self._wanted("application_credential_secret", "the credential's secret")
            name = self._text("application_credential_name")
            if name:
                credential: Record = {"name": name, "user": self._reference("user", "username")}
            else:
                name = self._wanted("application_credential_id", "the credential's id")
                credential = {"id": name}
            method = {
                "methods": ["application_credential"],
                "application_credential": {**credential, "secret": secret},
            }
            return f"application credential {printable(name, 64)}", secret, {"identity": method}
        if kind in _PASSWORD_TYPES:
            secret = self._wanted("password", "the user's password")
            user = self._reference("user", "username")
            project = self._reference("project", "project_name")
            method = {"methods": ["password"], "password": {"user": {**user, "password": secret}}}
            name = printable(user.get("id") or user["name"], 64)
            return f"user {name}", secret, {"identity": method, "scope": {"project": project}}
        message = f"`auth_type` is `{printable(kind, 40)}`: only {_APPLICATION_TYPE} and password are supported"
        raise self._error(f"{message}: make one (`openstack application credential create NAME`)")

    def _reference(self, what: str, name_key: str) -> Record:
        """Return a user or a project: its id, or its name and its domain."""
        if found := self._text(f"{what}_id"):
            return {"id": found}
        name = self._wanted(name_key, f"the {what}'s name; or `{what}_id`")
        for prefix in (f"{what}_domain", "domain", "default_domain"):
            for key in ("id", "name"):
                if domain := self._text(f"{prefix}_{key}"):
                    return {"name": name, "domain": {key: domain}}
        domain = self._wanted(f"{what}_domain_name", "its domain, often `Default`")
        return {"name": name, "domain": {"name": domain}}

    def _wanted(self, key: str, what: str) -> str:
        if found := self._text(key):
            return found
        also = ", or in a secure.yaml beside" if key in _SECRET_KEYS else ""
        raise self._error(f"`{key}` is missing: write it under `auth`{also} ({what})")

    def _text(self, key: str) -> str:
        value = self._entry.get(key, "")
        if not isinstance(value, str):
            raise self._error(f"`{key}`: a text on one line is wanted")
        return value if key in _SECRET_KEYS else value.strip()

    def _error(self, message: str) -> NoAccessError:
        return NoAccessError(f"{self._where}: {message}")


def _why(error: OSError | ssl.SSLError) -> str:
    return printable(error.strerror or str(error) or type(error).__name__)
