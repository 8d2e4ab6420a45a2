"""Access to a cloud: an entry of a clouds.yaml, or the credentials in the site file.

The file is read as openstacksdk reads it ("Configuring OpenStack SDK Applications"): the first one found, a secure.yaml
laid over it, keys with ``-`` or ``_``. It differs in this: a file that is named and not there, not readable or no YAML
is an error, not passed over; secure.yaml is looked for beside the file alone; the variables ``OS_*`` describe no cloud;
what the adapter cannot do is refused and not ignored.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from adapters.openstack.records import Record, mapping
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AuthError
from provisioner.model import FaultKind

if TYPE_CHECKING:
    from adapters.openstack.settings import CloudAccess

HTTP_URL = re.compile(r"https?://[^\s?#@]+")
_SUFFIXES = (".yaml", ".yml", ".json")
_VERSION = re.compile(r"/v(2\.0|3)$")
_MAX_CLOUDS_FILE_BYTES = 1024**2
_APPLICATION_TYPES = ("v3applicationcredential",)
_PASSWORD_TYPES = ("password", "v3password")
_SECRET_KEYS = ("password", "application_credential_secret")
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_OF_AUTH = frozenset(
    ("auth_url", "username", "password", *(f"application_credential_{each}" for each in ("id", "name", "secret")))
) | frozenset(
    f"{what}_{each}"
    for what in ("user", "project", "tenant", "user_domain", "project_domain", "domain", "default_domain")
    for each in ("id", "name")
)
_NO_PROFILES = "vendor profiles are not supported: write the profile's `auth_url` and the rest into the entry"
_NO_CERTIFICATES = "client certificates are not supported: use an application credential"
UNSUPPORTED = {"profile": _NO_PROFILES, "cloud": _NO_PROFILES, "cert": _NO_CERTIFICATES, "key": _NO_CERTIFICATES}
"""Keys of an entry without which it means something else -> what to do instead."""


class NoAccessError(AuthError):
    """Missing or wrong access to a cloud; the message names file, entry, key and repair, and never the secret."""

    kind = FaultKind.CONFIG


@dataclass(frozen=True, slots=True)
class KeystoneUser:
    """A user or an application credential, and the request by which it logs in."""

    name: str
    """For people."""
    secret: str = field(repr=False)
    body: Record = field(repr=False)
    """Body of POST /v3/auth/tokens."""


def application_credential(secret: str, **identity: Any) -> KeystoneUser:
    """``identity``: its ``id``, or its ``name`` and its ``user``.

    Source: Identity API v3, "Authenticating with an Application Credential".
    """
    method = {"methods": ["application_credential"], "application_credential": {**identity, "secret": secret}}
    name = printable(identity.get("id") or identity["name"], 64)
    return KeystoneUser(f"application credential {name}", secret, {"auth": {"identity": method}})


def password_user(password: str, user: Record, project: Record) -> KeystoneUser:
    """``user`` and ``project``: an ``id``, or a ``name`` and its ``domain``.

    Source: Identity API v3, "Password authentication".
    """
    identity = {"methods": ["password"], "password": {"user": {**user, "password": password}}}
    name = printable(user.get("id") or user["name"], 64)
    return KeystoneUser(f"user {name}", password, {"auth": {"identity": identity, "scope": {"project": project}}})


@dataclass(frozen=True, slots=True)
class Access:
    """Values needed to log in and to find the services."""

    auth_url: str
    """Ends in ``/v3``."""
    who: KeystoneUser
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
        file = _found(settings.clouds_file)
        where, entry = _entry(file, settings.cloud, beside_only=settings.clouds_file is not None)
        return _EntryReader(where, _regional(where, entry, settings.region)).access(settings)
    try:
        secret = settings.auth.application_credential_secret.read()
    except SecretUnreadableError as error:
        raise NoAccessError(f"`auth`: `application_credential_secret`: {error}") from None
    return Access(
        auth_url=_v3(settings.auth.url),
        who=application_credential(secret, id=settings.auth.application_credential_id),
        source="`auth` of the site file",
        region=settings.region,
        interface=settings.interface or "public",
        ca=settings.ca,
    )


def trusted_certificates(access: Access) -> ssl.SSLContext | bool:
    """Return the certificates to accept; False accepts any. Raises NoAccessError."""
    if not access.verify or access.ca is None:
        return access.verify
    try:
        return ssl.create_default_context(cafile=str(access.ca))
    except (OSError, ssl.SSLError) as error:
        raise NoAccessError(f"{access.source}: the authorities of {access.ca} cannot be read: {_why(error)}") from None


def access_problems(settings: CloudAccess) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what would not work on this host: path below the options, and message.

    It calls no service. Secrets in the site file are readable by everyone who can read that file.
    """
    key = ("clouds_file",) if settings.clouds_file else ("cloud",)
    try:
        access = read_access(settings)
        key = ("ca",) if settings.ca else ("cloud",)
        trusted_certificates(access)
    except NoAccessError as error:
        if settings.auth is None or key == ("ca",):
            yield key, str(error)


def _v3(url: str) -> str:
    """Return Keystone's address as it is written, of any version or none, as that of its third."""
    return _VERSION.sub("", url.rstrip("/")) + "/v3"


# ------------------------------------------------------------------------------------------------------------ the file


def _found(named: Path | None) -> Path:
    if named is not None:
        return named
    if path_of_user := os.environ.get("OS_CLIENT_CONFIG_FILE", ""):
        return Path(path_of_user).expanduser()
    home = Path("~").expanduser()
    own = Path(os.environ.get("XDG_CONFIG_HOME", "") or home / ".config")
    places = dict.fromkeys((Path.cwd(), own / "openstack", home / ".config/openstack", Path("/etc/openstack")))
    for directory in places:
        for suffix in _SUFFIXES:
            if (path := directory / f"clouds{suffix}").exists():
                return path
    looked = ", ".join(map(str, places))
    raise NoAccessError(f"there is no clouds.yaml in {looked}: write one, or say which with `clouds_file: path`")


def _secure(file: Path, *, beside_only: bool) -> Path | None:
    path_of_user = "" if beside_only else os.environ.get("OS_CLIENT_SECURE_FILE", "")
    if path_of_user:
        return Path(path_of_user).expanduser()
    return next((path for suffix in _SUFFIXES if (path := file.with_name(f"secure{suffix}")).exists()), None)


def _entry(file: Path, name: str, *, beside_only: bool) -> tuple[str, Mapping[str, Any]]:
    """Return the place of the entry and its content, with secure.yaml laid over it."""
    clouds, lines = _clouds(file)
    if name not in clouds:
        raise NoAccessError(
            f"{file}: there is no cloud `{printable(name, 64)}` under `clouds`: {choices(name, clouds)}"
        )
    where = f"{file}:{lines.get(name, 1)}: cloud `{printable(name, 64)}`"
    entry = clouds[name]
    if not isinstance(entry, dict):
        raise NoAccessError(f"{where}: it says nothing: write `auth:` and the rest below it")
    secure = _secure(file, beside_only=beside_only)
    over = _clouds(secure)[0].get(name) if secure is not None else None
    return where, _merged(_plain(entry), _plain(over)) if isinstance(over, dict) else _plain(entry)


class _CloudsLoader(yaml.SafeLoader):
    """Every scalar is text: a secret of digits stays what it is. Merge keys are what else clouds.yamls are made of."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own name)
        "<": [("tag:yaml.org,2002:merge", re.compile("^<<$"))]
    }


def _clouds(file: Path) -> tuple[Mapping[str, Any], Mapping[str, int]]:
    """Return the entries under ``clouds`` in a file, and the line at which each begins."""
    text = _text(file)
    try:
        loader = _CloudsLoader(text)
        node = loader.get_single_node()
        tree = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        # Its own words quote the file, and where a quote is forgotten what stands there may be the secret.
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise NoAccessError(
            f"{file}{line}: not YAML here: indent alike, and quote texts with special characters"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise NoAccessError(f"{file}: not YAML") from None
    clouds = tree.get("clouds") if isinstance(tree, dict) else None
    if not isinstance(clouds, dict):
        raise NoAccessError(f"{file}: it has no `clouds`: write `clouds: {{NAME: {{auth: ...}}}}`")
    return {str(name): entry for name, entry in clouds.items()}, _lines(node)


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_CLOUDS_FILE_BYTES + 1)
        if len(raw) > _MAX_CLOUDS_FILE_BYTES:
            raise NoAccessError(f"{file}: it is larger than 1 MiB: is it a clouds.yaml?")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise NoAccessError(f"{file}: it cannot be read: {_why(error)}") from None
    except UnicodeDecodeError:
        raise NoAccessError(f"{file}: it is not UTF-8 text") from None


def _lines(node: yaml.Node | None) -> Mapping[str, int]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "clouds" and isinstance(value, yaml.MappingNode):
            return {str(name.value): name.start_mark.line + 1 for name, _ in value.value}
    return {}


def _plain(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree with ``_`` in all keys."""
    return {
        str(key).replace("-", "_"): _plain(value) if isinstance(value, dict) else value for key, value in tree.items()
    }


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for key in merged:
        if isinstance(low := below.get(key), dict) and isinstance(high := above.get(key), dict):
            merged[key] = _merged(low, high)
    return merged


def _regional(where: str, entry: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
    """Return the entry for one region, with the keys that it overrides under ``regions``."""
    regions = entry.get("regions")
    if not isinstance(regions, list) or not regions:
        return entry
    values = {}
    for region in regions:
        described = region if isinstance(region, dict) else {"name": region}
        values[str(described.get("name") or "")] = _plain(mapping(described.get("values")))
    name = wanted or next(iter(values))
    if name not in values:
        raise NoAccessError(f"{where}: under `regions` there is no `{printable(name, 64)}`: {choices(name, values)}")
    return {**_merged(entry, values[name]), "region_name": name}


# ----------------------------------------------------------------------------------------------------------- the entry


class _EntryReader:
    """One entry of a clouds.yaml."""

    def __init__(self, where: str, entry: Mapping[str, Any]) -> None:
        self._where, self._entry = where, entry
        # As openstacksdk has it, what stands beside `auth` comes before what stands in it.
        auth = {**mapping(entry.get("auth")), **{key: value for key, value in entry.items() if key in _OF_AUTH}}
        self._auth = {key.replace("tenant_", "project_"): value for key, value in auth.items()}

    def access(self, settings: CloudAccess) -> Access:
        for key, instead in UNSUPPORTED.items():
            if self._entry.get(key):
                raise self._error(f"`{key}`: {instead}")
        if override := next((key for key in self._entry if key.endswith("_endpoint_override")), None):
            raise self._error(f"`{override}` is not supported: the catalogue says where services are")
        if self._option("identity_api_version").startswith("2"):
            raise self._error("`identity_api_version`: Keystone's API v3 is spoken: remove it")
        auth_url = self._wanted("auth_url", "Keystone's address, `https://keystone.example.org:5000/v3`")
        if not HTTP_URL.fullmatch(auth_url):
            raise self._error("`auth_url` is no address: write `https://keystone.example.org:5000/v3`")
        ca = self._option("cacert")
        return Access(
            auth_url=_v3(auth_url),
            who=self._user(),
            source=self._where,
            region=settings.region or self._option("region_name").partition(",")[0].strip(),
            interface=settings.interface or self._interface(),
            verify=settings.ca is not None or self._verify(),
            ca=settings.ca or (Path(ca).expanduser() if ca else None),
        )

    def _interface(self) -> str:
        written = self._option("interface") or self._option("endpoint_type")
        interface = written.removesuffix("URL") or "public"
        if interface not in (known := ("public", "internal", "admin")):
            raise self._error(f"`interface`: no `{printable(written, 40)}`: {choices(interface, known)}")
        return interface

    def _verify(self) -> bool:
        """Return whether certificates are checked: not with ``verify: false``, or the older ``insecure: true``."""
        values = {key: self._option(key).lower() for key in ("verify", "insecure")}
        if wrong := next((key for key, value in values.items() if value not in ("", *_YES, *_NO)), None):
            raise self._error(f"`{wrong}`: write `true` or `false`")
        return values["verify"] not in _NO and values["insecure"] not in _YES

    def _user(self) -> KeystoneUser:
        kind = (self._option("auth_type") or self._option("auth_plugin")).lower()
        if not kind:
            kind = (_APPLICATION_TYPES if "application_credential_secret" in self._auth else _PASSWORD_TYPES)[0]
        if kind in _APPLICATION_TYPES:
            secret = self._wanted("application_credential_secret", "the credential's secret")
            if name := self._text("application_credential_name"):
                return application_credential(secret, name=name, user=self._reference("user", "username"))
            return application_credential(secret, id=self._wanted("application_credential_id", "the credential's id"))
        if kind in _PASSWORD_TYPES:
            password = self._wanted("password", "the user's password")
            user, project = self._reference("user", "username"), self._reference("project", "project_name")
            return password_user(password, user, project)
        message = f"`auth_type` is `{printable(kind, 40)}`: only v3applicationcredential and password are supported"
        raise self._error(f"{message}: make one (`openstack application credential create NAME`)")

    def _reference(self, what: str, name_key: str) -> Record:
        """Return a user or a project by its id, or by its name within its domain."""
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

    def _option(self, key: str) -> str:
        return self._text(key, self._entry)

    def _text(self, key: str, within: Record | None = None) -> str:
        value = (self._auth if within is None else within).get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._error(f"`{key}`: a text on one line is wanted")
        return value.strip() if key not in _SECRET_KEYS else value

    def _error(self, message: str) -> NoAccessError:
        return NoAccessError(f"{self._where}: {message}")


def _why(error: OSError | ssl.SSLError) -> str:
    return printable(error.strerror or str(error) or type(error).__name__)
