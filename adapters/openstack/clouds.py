"""How a cloud is reached and who we are there: an entry of a clouds.yaml, or what the site file says itself.

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

from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.config.units import SecretUnreadableError
from provisioner.interfaces import AuthError
from provisioner.model import FaultKind

if TYPE_CHECKING:
    from adapters.openstack.settings import CloudAccess, Credentials

_SUFFIXES = (".yaml", ".yml", ".json")
_URL = re.compile(r"https?://[^\s?#@]+")
_VERSION = re.compile(r"/v(2\.0|3)$")
_LARGEST_FILE = 1024**2
_APPLICATION = ("v3applicationcredential",)
_PASSWORD = ("password", "v3password")

UNSUPPORTED = {
    "profile": "vendor profiles are not supported: write the profile's `auth_url` and the rest into the entry",
    "cloud": "vendor profiles are not supported: write the profile's `auth_url` and the rest into the entry",
    "cert": "client certificates are not supported: use an application credential",
    "key": "client certificates are not supported: use an application credential",
}
"""Keys of an entry without which it means something else -> what to do instead."""


class NoAccessError(AuthError):
    """It is not said, or not well, where the cloud is and who we are: file, entry, key and repair. Never the secret."""

    kind = FaultKind.CONFIG


@dataclass(frozen=True, slots=True)
class Domain:
    """Domain of a user or a project, by id or by name."""

    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class NamedReference:
    """A user or a project, by id, or by name within a domain."""

    id: str = ""
    name: str = ""
    domain: Domain = Domain()


@dataclass(frozen=True, slots=True)
class ApplicationCredential:
    """By id, or by its name within its user."""

    secret: str = field(repr=False)
    id: str = ""
    name: str = ""
    user: NamedReference = NamedReference()

    def __str__(self) -> str:
        return f"application credential {printable(self.id or self.name, 64)}"


@dataclass(frozen=True, slots=True)
class Password:
    password: str = field(repr=False)
    user: NamedReference
    project: NamedReference

    @property
    def secret(self) -> str:
        return self.password

    def __str__(self) -> str:
        return f"user {printable(self.user.id or self.user.name, 64)}"


@dataclass(frozen=True, slots=True)
class Access:
    """All that is wanted to log in and to find the services."""

    auth_url: str
    """Ends in ``/v3``."""
    who: ApplicationCredential | Password
    source: str
    """For people: where it is written."""
    region: str = ""
    """Empty: the first of the catalogue."""
    interface: str = "public"
    verify: bool = True
    ca: Path | None = None


def access(settings: CloudAccess) -> Access:
    """Read the settings of a cloud with its secrets. Raises NoAccessError."""
    if settings.auth is not None:
        return _said(settings, settings.auth)
    file = _found(settings.clouds_file)
    where, entry = _entry(file, settings.cloud, beside_only=settings.clouds_file is not None)
    return _Entry(where, _regional(where, entry, settings.region)).access(settings)


def trust(access: Access) -> ssl.SSLContext | bool:
    """Return the certificates to accept; False accepts any. Raises NoAccessError."""
    if not access.verify:
        return False
    if access.ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(access.ca))
    except (OSError, ssl.SSLError) as error:
        raise NoAccessError(f"{access.source}: the authorities of {access.ca} cannot be read: {_why(error)}") from None


def doubts(settings: CloudAccess) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what would not work on this host: path below the options, and message.

    It calls no service. Secrets in the site file are readable by everyone who can read that file.
    """
    try:
        found = access(settings)
    except NoAccessError as error:
        if settings.auth is None:
            yield ("clouds_file",) if settings.clouds_file else ("cloud",), str(error)
        return
    try:
        trust(found)
    except NoAccessError as error:
        yield ("ca",) if settings.ca else ("cloud",), str(error)


def _said(settings: CloudAccess, auth: Credentials) -> Access:
    try:
        secret = auth.application_credential_secret.read()
    except SecretUnreadableError as error:
        raise NoAccessError(f"`auth`: `application_credential_secret`: {error}") from None
    return Access(
        auth_url=_v3(auth.url),
        who=ApplicationCredential(secret=secret, id=auth.application_credential_id),
        source="`auth` of the site file",
        region=settings.region,
        interface=settings.interface or "public",
        ca=settings.ca,
    )


def _v3(url: str) -> str:
    """Keystone's address as it is written, of any version or none, as that of its third."""
    return _VERSION.sub("", url.rstrip("/")) + "/v3"


# ------------------------------------------------------------------------------------------------------------ the file


def _found(named: Path | None) -> Path:
    if named is not None:
        return named
    if told := os.environ.get("OS_CLIENT_CONFIG_FILE", ""):
        return Path(told).expanduser()
    for directory in (places := _places()):
        for suffix in _SUFFIXES:
            if (path := directory / f"clouds{suffix}").exists():
                return path
    looked = ", ".join(map(str, places))
    raise NoAccessError(f"there is no clouds.yaml in {looked}: write one, or say which with `clouds_file: path`")


def _places() -> list[Path]:
    home = Path("~").expanduser()
    own = Path(os.environ.get("XDG_CONFIG_HOME", "") or home / ".config")
    return list(dict.fromkeys((Path.cwd(), own / "openstack", home / ".config/openstack", Path("/etc/openstack"))))


def _secure(file: Path, *, beside_only: bool) -> Path | None:
    told = "" if beside_only else os.environ.get("OS_CLIENT_SECURE_FILE", "")
    if told:
        return Path(told).expanduser()
    return next((path for suffix in _SUFFIXES if (path := file.with_name(f"secure{suffix}")).exists()), None)


def _entry(file: Path, name: str, *, beside_only: bool) -> tuple[str, Mapping[str, Any]]:
    """Where the entry is, and what it says, secure.yaml laid over it."""
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
            raw = stream.read(_LARGEST_FILE + 1)
        if len(raw) > _LARGEST_FILE:
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
    """With ``_`` in all keys, of which ``auth`` is the only mapping that matters."""
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
        told = region if isinstance(region, dict) else {"name": region}
        own = told.get("values")
        values[str(told.get("name") or "")] = _plain(own) if isinstance(own, dict) else {}
    name = wanted or next(iter(values))
    if name not in values:
        raise NoAccessError(f"{where}: under `regions` there is no `{printable(name, 64)}`: {choices(name, values)}")
    return {**_merged(entry, values[name]), "region_name": name}


# ----------------------------------------------------------------------------------------------------------- the entry


class _Entry:
    """One entry, asked for one key after the other."""

    def __init__(self, where: str, entry: Mapping[str, Any]) -> None:
        self._where = where
        self._entry = entry
        auth = entry.get("auth")
        # As openstacksdk has it, what stands beside `auth` comes before what stands in it.
        told = {**(auth if isinstance(auth, dict) else {}), **{k: v for k, v in entry.items() if k in _OF_AUTH}}
        self._auth = {key.replace("tenant_", "project_"): value for key, value in told.items()}

    def access(self, settings: CloudAccess) -> Access:
        for key, instead in UNSUPPORTED.items():
            if self._entry.get(key):
                raise NoAccessError(f"{self._where}: `{key}`: {instead}")
        if override := next((key for key in self._entry if key.endswith("_endpoint_override")), None):
            raise NoAccessError(f"{self._where}: `{override}` is not supported: the catalogue says where services are")
        if self._text("identity_api_version", self._entry).startswith("2"):
            raise NoAccessError(f"{self._where}: `identity_api_version`: Keystone's API v3 is spoken: remove it")
        ca = self._text("cacert", self._entry)
        return Access(
            auth_url=self._auth_url(),
            who=self._who(),
            source=self._where,
            region=settings.region or self._text("region_name", self._entry).partition(",")[0].strip(),
            interface=settings.interface or self._interface(),
            verify=settings.ca is not None or not self._unbelieving(),
            ca=settings.ca or (Path(ca).expanduser() if ca else None),
        )

    def _auth_url(self) -> str:
        url = self._wanted("auth_url", "Keystone's address, `https://keystone.example.org:5000/v3`")
        if not _URL.fullmatch(url):
            raise NoAccessError(
                f"{self._where}: `auth_url` is no address: write `https://keystone.example.org:5000/v3`"
            )
        return _v3(url)

    def _interface(self) -> str:
        told = self._text("interface", self._entry) or self._text("endpoint_type", self._entry)
        interface = told.removesuffix("URL") or "public"
        if interface not in (known := ("public", "internal", "admin")):
            raise NoAccessError(f"{self._where}: `interface`: no `{printable(told, 40)}`: {choices(interface, known)}")
        return interface

    def _unbelieving(self) -> bool:
        """Return whether any certificate is accepted: ``verify: false``, or the older ``insecure: true``."""
        verify, insecure = self._text("verify", self._entry).lower(), self._text("insecure", self._entry).lower()
        for key, told in (("verify", verify), ("insecure", insecure)):
            if told not in ("", *_YES, *_NO):
                raise NoAccessError(f"{self._where}: `{key}`: write `true` or `false`")
        return verify in _NO or insecure in _YES

    def _who(self) -> ApplicationCredential | Password:
        kind = (self._text("auth_type", self._entry) or self._text("auth_plugin", self._entry)).lower()
        if not kind:
            kind = _APPLICATION[0] if "application_credential_secret" in self._auth else _PASSWORD[0]
        if kind in _APPLICATION:
            return self._application_credential()
        if kind in _PASSWORD:
            return self._password()
        message = f"`auth_type` is `{printable(kind, 40)}`: only v3applicationcredential and password are supported"
        raise NoAccessError(f"{self._where}: {message}: make one (`openstack application credential create NAME`)")

    def _application_credential(self) -> ApplicationCredential:
        secret = self._wanted("application_credential_secret", "the credential's secret")
        if name := self._text("application_credential_name"):
            return ApplicationCredential(secret, name=name, user=self._named("user", "username"))
        return ApplicationCredential(secret, id=self._wanted("application_credential_id", "the credential's id"))

    def _password(self) -> Password:
        password = self._wanted("password", "the user's password")
        return Password(password, self._named("user", "username"), self._named("project", "project_name"))

    def _named(self, what: str, name_key: str) -> NamedReference:
        if found := self._text(f"{what}_id"):
            return NamedReference(id=found)
        name = self._wanted(name_key, f"the {what}'s name; or `{what}_id`")
        for prefix in (f"{what}_domain", "domain", "default_domain"):
            domain = Domain(self._text(f"{prefix}_id"), self._text(f"{prefix}_name"))
            if domain != Domain():
                return NamedReference(name=name, domain=domain)
        return NamedReference(
            name=name, domain=Domain(name=self._wanted(f"{what}_domain_name", "its domain, often `Default`"))
        )

    def _wanted(self, key: str, what: str) -> str:
        if found := self._text(key):
            return found
        also = ", or in a secure.yaml beside" if key in _SECRETS else ""
        raise NoAccessError(f"{self._where}: `{key}` is missing: write it under `auth`{also} ({what})")

    def _text(self, key: str, within: Mapping[str, Any] | None = None) -> str:
        told = (self._auth if within is None else within).get(key)
        if told is None:
            return ""
        if not isinstance(told, str):
            raise NoAccessError(f"{self._where}: `{key}`: a text on one line is wanted")
        return told.strip() if key not in _SECRETS else told


_SECRETS = ("password", "application_credential_secret")
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_OF_AUTH = frozenset(
    ("auth_url", "username", "password", *(f"application_credential_{each}" for each in ("id", "name", "secret")))
) | frozenset(
    f"{what}_{each}"
    for what in ("user", "project", "tenant", "user_domain", "project_domain", "domain", "default_domain")
    for each in ("id", "name")
)


def _why(error: OSError | ssl.SSLError) -> str:
    return printable(error.strerror or str(error) or type(error).__name__)
