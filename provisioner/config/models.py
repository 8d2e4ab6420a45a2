"""The controller file and the site file as pydantic models: every key with its unit, default, meaning and an example.

The options of adapters are validated by each adapter's own ``Config``.
The reference and the JSON Schemas are generated from these classes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from provisioner import mig
from provisioner.config.credentials import authorities_credential, certificate_credential
from provisioner.config.sections import as_settings, settings_of
from provisioner.config.units import (
    ConfigPath,
    Name,
    PositiveDuration,
    Secret,
)
from provisioner.durations import format_duration
from provisioner.model import (
    NVIDIA,
    WHOLE_GPU,
    AccountingPolicy,
    Benchmark,
    Credential,
    DroneType,
    GpuBudget,
    Headroom,
    InferenceServer,
    LowUsePolicy,
    MigLayout,
    Policy,
    Reserve,
    Service,
    Sharing,
    SitePolicy,
)
from provisioner.settings import SERVER_WALLTIME_S
from provisioner.sharing import MOST_SLICES
from provisioner.store.database import Place, place_of

_MAX_CONTROLLER_NAME = 32
"""Most characters: a drone's id begins with the name and is a DNS label of at most 63."""


def mistake_at(key: str | int, message: str) -> PydanticCustomError:
    """Return an error, found by comparing keys of one mapping or entries of one list, to be reported at ``key``."""
    return PydanticCustomError("mistake_at", "{message}", {"message": message, "at": key})


section_check = model_validator(mode="after")
"""Decorator of the check of a section as a whole, after its fields are valid."""


class ConfigSection(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def placing_options(config: type[BaseModel]) -> dict[str, object]:
    """Return the options that the adapter marks as defining where its drones are, each with its mark.

    The mark is ``json_schema_extra={"places_drones": True}``, or ``"shared"`` where sites tell
    their drones apart in one place.
    """
    extras = {name: field.json_schema_extra for name, field in config.model_fields.items()}
    return {
        n: e["places_drones"]
        for n, e in extras.items()
        if isinstance(e, dict) and e.get("places_drones")
    }


# ----------------------------------------------------------------------------------------------------
# controller file


class StoreSection(ConfigSection):
    """The store: where the records are kept, and for how long."""

    path: ConfigPath | None = Field(None, examples=["var/provisioner.db"])
    """SQLite file of the store, for one controller. Its directory is created if needed. Either this or `url`."""
    url: str | None = Field(None, examples=["postgresql://provisioner@db.example.org/provisioner"])
    """PostgreSQL database of the store, without a password. The record is in a schema with the name of the
    controller; `?schema=NAME` names another one."""
    password: Secret | None = Field(None, examples=[{"file": "store.password"}])
    """Password of the role in `url`. Default: as libpq finds it (`~/.pgpass`, peer authentication)."""
    keep: PositiveDuration = Field(30 * 86400.0, examples=["30d"])
    """Finished drones, plans, events and completed jobs that are older than this are deleted."""
    series: PositiveDuration = Field(400 * 86400.0, examples=["400d"])
    """Time for which hourly time series are kept; those by ten minutes stay 30 days, by the minute 2 days."""
    ledger: PositiveDuration = Field(5 * 365 * 86400.0, examples=["1825d"])
    """Days of the accounting ledger are kept for this long; its entries of single runs and drones as
    `keep` says, but at least for 40 days."""
    snapshots: int = Field(50, ge=0, le=100_000, examples=[50])
    """Number of full snapshots kept, of the newest ticks that acted (for `provisioner replay`)."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.url is None):
            raise ValueError("exactly one of `path` and `url` is needed: write one of them")
        if self.password is not None and self.url is None:
            raise ValueError("`password` is for `url`: remove it")
        return self

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        # no password: the text of the configuration is kept on record
        expected = r"postgres(ql)?://([^:@/]*@)?(?!.*[?&](ssl)?password=)[^@]*"
        if url is not None and not re.fullmatch(expected, url):
            raise ValueError(
                "expected postgresql://ROLE@HOST/DATABASE without a password: put that into `password`"
            )
        return url

    def place(self, controller: str) -> Place:
        """Return the place of the record of a controller."""
        if self.path is not None:
            return self.path
        given = self.password.model_dump() if self.password is not None else {}
        return place_of(str(self.url), controller, given)


class OverlaySection(ConfigSection):
    """The pool where jobs wait and drones join."""

    adapter: str = Field(examples=["htcondor"])
    """Name of the overlay adapter."""
    options: dict[str, Any] = Field({}, examples=[{}])
    """Options of the adapter."""


def _two_hours(hours: tuple[int, ...]) -> tuple[int, ...]:
    if len(hours) != 2 or not all(0 <= hour <= 24 for hour in hours) or hours[0] == hours[1]:
        raise ValueError(
            "expected two different hours from 0 to 24: write `[7, 17]`, or remove `hours` for always"
        )
    return hours


@settings_of(Headroom, "gpu_milli", "vram_mib")
class _HeadroomSettings(ConfigSection):
    name: Name = Field(examples=["day-shift"])
    """Name of this headroom, as shown to people."""
    count: int = Field(ge=1, le=100_000, examples=[2])
    """Number of jobs of this shape."""


class HeadroomSection(_HeadroomSettings):
    """Headroom: free room for a number of equal jobs that have not been submitted yet."""

    site: Name | None = Field(None, examples=["topas"])
    """Only at this site. Default: any site."""
    types: tuple[Name, ...] = Field((), examples=[["a100"]])
    """Only drones of these types. Default: any type that fits."""
    hours: Annotated[tuple[int, ...], AfterValidator(_two_hours)] | None = Field(
        None, examples=[[7, 17]]
    )
    """From the first full hour of the day (UTC) up to the second; past midnight if that is smaller. Default: always."""

    @property
    def settings(self) -> Headroom:
        """Return what the planner reads."""
        from_h, to_h = self.hours or (0, 24)
        return as_settings(Headroom, self, site=self.site or "", from_h=from_h, to_h=to_h)


Named = TypeVar("Named", bound=tuple[ConfigSection, ...])


def _names_differ(entries: Named, info: ValidationInfo) -> Named:
    names = [entry.model_dump()["name"] for entry in entries]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise mistake_at(n, f"duplicate {info.field_name} `{name}`: rename or remove one")
    return entries


@settings_of(LowUsePolicy, "action", "window_s")
class LowUseSection(ConfigSection):
    """Job classes (the jobs of a user with one size) that use little of their GPUs."""


_DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"


class BudgetSection(ConfigSection):
    """GPU-hours granted at a site, such as a project's allocation at a computing centre."""

    site: Name = Field(examples=["horeka"])
    """Name of the site."""
    gpu_hours: float = Field(gt=0, le=1e12, examples=[50000])
    """GPU-hours of drones that may be used."""
    since: str = Field(pattern=_DAY, examples=["2026-10-01"])
    """First day, in quotes."""
    until: str = Field(pattern=_DAY, examples=["2027-09-30"])
    """Last day, in quotes."""


class AccountingSection(ConfigSection):
    """Figures that reports compare with (`provisioner accounting report`)."""

    weight: str = Field("", pattern=r"^([A-Za-z][A-Za-z0-9_]{0,31})?$", examples=["HEPScore4GPU"])
    """Name of a `benchmark` with `per: gpu` of drone types, which weights GPU-hours. Default: none."""
    pledges: dict[str, Annotated[float, Field(gt=0, le=1e12)]] = Field({}, examples=[{"cms": 4000}])
    """GPU-hours a month by VO."""
    budgets: tuple[BudgetSection, ...] = Field(
        (),
        examples=[
            [
                {
                    "site": "horeka",
                    "gpu_hours": 50000,
                    "since": "2026-10-01",
                    "until": "2027-09-30",
                }
            ]
        ],
    )
    """Granted GPU-hours by site."""

    @property
    def settings(self) -> AccountingPolicy:
        """Return what reports read."""
        budgets = tuple(as_settings(GpuBudget, each) for each in self.budgets)
        return as_settings(AccountingPolicy, self, budgets=budgets)


@settings_of(Policy, "interval_s", "services_share")
class _PolicySettings(ConfigSection):
    pass


class PolicySection(_PolicySettings):
    """The policy for all sites together."""

    waiting_cost_by_group: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        {}, examples=[{"cms.urgent": 5}]
    )
    """The same for the jobs of accounting groups, and of the groups within these."""
    headroom: Annotated[tuple[HeadroomSection, ...], AfterValidator(_names_differ)] = Field(
        (), examples=[[{"name": "day-shift", "count": 2, "hours": [7, 17]}]]
    )
    """Free room kept for jobs that have not been submitted yet."""
    low_use: LowUseSection = Field(LowUseSection(), examples=[{"action": "warn", "below": 0.15}])
    """Job classes that use little of their GPUs."""
    accounting: AccountingSection = Field(
        AccountingSection(), examples=[{"pledges": {"cms": 4000}}]
    )
    """Figures that reports of accounting compare with."""

    @section_check
    def _times_agree(self) -> Self:
        policy = self.settings
        interval = format_duration(policy.interval_s)
        if policy.active_interval_s > policy.interval_s:
            raise mistake_at(
                "active_interval",
                f"is longer than `interval` ({interval}): write at most `{interval}`",
            )
        for key, given_s, consequence in (
            ("idle_timeout", policy.idle_timeout_s, "drones would leave between two ticks"),
            ("overlay_max_age", policy.overlay_max_age_s, "views would always be too old"),
        ):
            if given_s < policy.interval_s:
                raise mistake_at(
                    key, f"is shorter than `interval`: {consequence}; write at least `{interval}`"
                )
        return self

    @property
    def settings(self) -> Policy:
        """Return what the planner reads, without the sites."""
        return as_settings(
            Policy,
            self,
            headroom=tuple(each.settings for each in self.headroom),
            low_use=as_settings(LowUsePolicy, self.low_use),
            accounting=self.accounting.settings,
        )


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``127.0.0.1:8618`` or ``[::1]:8618``. The ValueError names the remedy."""
    found = re.fullmatch(r"\[([0-9A-Fa-f:.%]+)\]:(\d{1,5})|([A-Za-z0-9.-]+):(\d{1,5})", text)
    if not found or int(found[2] or found[4]) > 65535:
        raise ValueError("expected an address with a port: write `127.0.0.1:8618`, or `[::1]:8618`")
    return found[1] or found[3], int(found[2] or found[4])


def _address(text: str) -> str:
    parse_address(text)
    return text


def _loopback(text: str) -> str:
    if text and not is_loopback(parse_address(text)[0]):
        raise ValueError(
            "everybody who reaches it may read: write `127.0.0.1:8618`, and use `tls` or `proxy` for others"
        )
    return text


def is_loopback(host: str) -> bool:
    """Return True for the names and addresses of this host that nobody else reaches."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _issuer(url: str) -> str:
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or not parts.hostname:
        raise ValueError("expected the URL of an issuer: write `https://wlcg.cloud.cnaf.infn.it/`")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname)):
        raise ValueError("its keys must come over TLS: write `https://...`")
    return url


def _origin(url: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+", url):
        raise ValueError(
            "expected scheme and host without a path: write `https://drones.example.edu`"
        )
    return url


_DN = re.compile(r"/([A-Za-z]+)=([^/]*(?:/(?![A-Za-z]+=)[^/]*)*)")


def parse_dn(text: str) -> tuple[tuple[str, str], ...]:
    """Return attributes and values of a DN in the notation of grids, ``/DC=org/CN=Ann``. The ValueError names one."""
    parts = tuple((found[1], found[2]) for found in _DN.finditer(text))
    if "".join(f"/{key}={value}" for key, value in parts) != text or not parts:
        raise ValueError("expected a DN: write `/DC=org/DC=terena/O=KIT/CN=*`")
    return parts


def _dn(text: str) -> str:
    parse_dn(text)
    return text


class Role(StrEnum):
    """Rights of a caller of the web service. Who may operate may read."""

    READ = "read"
    OPERATE = "operate"

    @classmethod
    def highest(cls, roles: Iterable[Role | None]) -> Role | None:
        """Return the role with most rights; None: there is none."""
        return max(filter(None, roles), key=list(cls).index, default=None)


class WebOperatorsSection(ConfigSection):
    """The accounts of this host that may operate over the unix socket, beside root and the service's own.

    All others who can open the socket may read.
    """

    users: tuple[str, ...] = Field((), examples=[["ann"]])
    """Names of users."""
    groups: tuple[str, ...] = Field((), examples=[["gpu-operators"]])
    """Names of groups."""


class WebSubjectSection(ConfigSection):
    """Subjects of client certificates with one role."""

    dn: Annotated[str, AfterValidator(_dn)] = Field(examples=["/DC=org/DC=terena/O=KIT/CN=Ann *"])
    """Each part of the subject, in its order; `*`, `?` and `[...]` in a value as in file names."""
    role: Role = Field(Role.READ, examples=["operate"])
    """Role of these subjects."""


class WebTlsSection(ConfigSection):
    """A listener with TLS, for client certificates and tokens. Without either, only public pages are given."""

    listen: Annotated[str, AfterValidator(_address)] = Field(
        "0.0.0.0:8619", examples=["0.0.0.0:8619"]
    )
    """Address and port."""
    certificate: ConfigPath = Field(examples=["/etc/grid-security/hostcert.pem"])
    """Certificate of this host, with its chain."""
    key: ConfigPath = Field(examples=["/etc/grid-security/hostkey.pem"])
    """Its private key."""
    client_ca: ConfigPath | None = Field(None, examples=["/etc/grid-security/site-ca.pem"])
    """File, or directory with hashed names, of the authorities of client certificates. Each of them may issue
    every subject: `signing_policy` files are not read. Default: none is asked for."""
    subjects: tuple[WebSubjectSection, ...] = Field(
        (), examples=[[{"dn": "/DC=org/CN=Ann", "role": "operate"}]]
    )
    """Roles by subject; the first that matches applies. A subject that none matches has no role."""

    def credentials(self) -> Iterator[Credential]:
        """Yield the certificate, and the authorities of clients if they are a file."""
        yield certificate_credential("certificate", self.certificate)
        if self.client_ca is not None and not self.client_ca.is_dir():
            yield authorities_credential("client_ca", self.client_ca)


class WebProxySection(ConfigSection):
    """A unix socket for a reverse proxy that logs people in (OpenID Connect). Its headers are believed only there.

    In each request the proxy must set or remove `X-Remote-User`, and `X-Remote-Groups` with all
    groups of the user.
    """

    socket: ConfigPath = Field(examples=["/run/provisioner-web/proxy.sock"])
    """Path of the socket, in a directory that the proxy can enter."""
    users: tuple[str, ...] = Field(("www-data",), min_length=1, examples=[["www-data"]])
    """Accounts under which the proxy runs. The kernel tells who connects; all others are refused."""
    origin: Annotated[str, AfterValidator(_origin)] = Field(examples=["https://drones.example.edu"])
    """Scheme and host as browsers see them; changes from pages of other origins are refused."""
    groups: dict[str, Role] = Field(
        {}, examples=[{"gpu-users": "read", "gpu-operators": "operate"}]
    )
    """Role of each group, `*` for everybody who is logged in; a user has the highest."""
    group_separator: str = Field(",", min_length=1, max_length=8, examples=["|"])
    """Text between the groups, which no name of a group contains."""

    @section_check
    def _whole_groups(self) -> Self:
        split = sorted(group for group in self.groups if self.group_separator in group)
        if split:
            raise ValueError(
                f"groups: `{split[0]}` has the `group_separator` in it. Choose another separator"
            )
        return self


class WebTokenSection(ConfigSection):
    """An issuer of bearer tokens (WLCG profile, SciTokens).

    Tokens with the scope `compute.read` may read, those with `compute.modify` or `compute.cancel`
    may operate.
    """

    issuer: Annotated[str, AfterValidator(_issuer)] = Field(
        examples=["https://wlcg.cloud.cnaf.infn.it/"]
    )
    """URL of the issuer, exactly as in its tokens. Its keys are found by OpenID discovery."""
    audience: tuple[str, ...] = Field(min_length=1, examples=[["https://drones.example.edu"]])
    """Audiences of this service. Tokens for any service pass with `https://wlcg.cern.ch/jwt/v1/any` or `ANY`."""


class HaSection(ConfigSection):
    """Several controllers with one record: one leads, the others stand by. Each has the same files."""

    lease: PositiveDuration = Field(10.0, ge=2, le=600, examples=["10s"])
    """Time after which another member leads if the leader gives no sign of life."""


class WebSection(ConfigSection):
    """The web service (`provisioner serve`). It reads this section when it starts."""

    socket: ConfigPath | None = Field(None, examples=["/run/provisioner/web.sock"])
    """Unix socket, for the owner and the group of the service (mode 0660). Default: `web.sock` beside the store,
    with `store.url` in `/run/provisioner-web`."""
    listen: Annotated[str, AfterValidator(_loopback)] = Field(
        "127.0.0.1:8618", examples=["127.0.0.1:8618"]
    )
    """Loopback address and port; all who reach it may read. `""`: none."""
    operators: WebOperatorsSection = Field(WebOperatorsSection(), examples=[{"users": ["ann"]}])
    """Accounts that may operate over the unix socket."""
    tls: WebTlsSection | None = Field(
        None,
        examples=[
            {
                "certificate": "/etc/grid-security/hostcert.pem",
                "key": "/etc/grid-security/hostkey.pem",
            }
        ],
    )
    """A listener with TLS. Default: none."""
    proxy: WebProxySection | None = Field(
        None,
        examples=[
            {"socket": "/run/provisioner-web/proxy.sock", "origin": "https://drones.example.edu"}
        ],
    )
    """A socket for a reverse proxy. Default: none."""
    tokens: tuple[WebTokenSection, ...] = Field(
        (),
        examples=[
            [
                {
                    "issuer": "https://wlcg.cloud.cnaf.infn.it/",
                    "audience": ["https://drones.example.edu"],
                }
            ]
        ],
    )
    """Issuers of bearer tokens, which are accepted at all addresses and sockets."""


@settings_of(Service, "name", "grpc_port")
class _ServiceSettings(ConfigSection):
    pass


class ServiceSection(_ServiceSettings):
    """An inference service: equal servers in drones of the types that name it, behind one balancer."""

    tokens: dict[Name, Secret] = Field({}, examples=[{"cms": {"file": "/etc/provisioner/cms"}}])
    """Token of each VO that may call it. Default: the balancer asks for none."""
    key: Secret | None = Field(None, examples=[{"file": "/etc/provisioner/servers.key"}])
    """Secret that the balancer sends to servers, so that nobody calls them directly. Default: none."""

    @property
    def settings(self) -> Service:
        """Return what the planner reads."""
        return as_settings(Service, self)

    @section_check
    def _agrees(self) -> Self:
        service = self.settings
        if service.at_least > service.at_most:
            raise mistake_at(
                "at_least",
                f"is more than `at_most` ({service.at_most}): write at most `{service.at_most}`",
            )
        if service.http_port == service.grpc_port:
            raise mistake_at("grpc_port", "is also `http_port`: write another port")
        return self


def _ports_differ(services: tuple[ServiceSection, ...]) -> tuple[ServiceSection, ...]:
    taken: dict[int, str] = {}
    for n, each in enumerate(services):
        service = each.settings
        for port in (service.http_port, service.grpc_port):
            if port in taken:
                problem = f"port {port} of the balancer is also of service `{taken[port]}`"
                raise mistake_at(n, f"{problem}: write another `http_port` or `grpc_port`")
            taken[port] = service.name
    return services


class BalancerSection(ConfigSection):
    """The haproxy in front of the services, which the controller keeps in step through its run-time API."""

    socket: ConfigPath = Field(examples=["/run/haproxy/admin.sock"])
    """Unix socket of the run-time API, with `level admin`."""
    host: str = Field(pattern=r"^[A-Za-z0-9.:-]{1,253}$", examples=["balancer.example.org"])
    """Name or address under which jobs reach it."""


def _short_name(name: str) -> str:
    if len(name) > _MAX_CONTROLLER_NAME:
        raise ValueError(
            f"has {len(name)} characters: at most {_MAX_CONTROLLER_NAME}, it begins each drone's id"
        )
    return name


class ControllerFile(ConfigSection):
    """The controller file: one controller, its store, its pool, its sites and the policy for all of them."""

    controller: Annotated[Name, AfterValidator(_short_name)] = Field(examples=["kit"])
    """Name of this controller. Every drone's id begins with it: no two controllers may share a name."""
    store: StoreSection = Field(examples=[{"path": "var/provisioner.db"}])
    """The store of the controller."""
    overlay: OverlaySection = Field(examples=[{"adapter": "htcondor"}])
    """The pool where jobs wait and drones join."""
    sites: list[str] = Field(min_length=1, examples=[["site_configs/*.yaml"]])
    """Site files: paths or patterns (`*`, `**`), from this file's directory."""
    policy: PolicySection = Field(PolicySection(), examples=[{"interval": "15s"}])
    """The policy for all sites together."""
    services: Annotated[
        tuple[ServiceSection, ...], AfterValidator(_names_differ), AfterValidator(_ports_differ)
    ] = Field((), examples=[[{"name": "cms", "at_most": 4}]])
    """Inference services for jobs. Default: none."""
    balancer: BalancerSection | None = Field(
        None, examples=[{"socket": "/run/haproxy/admin.sock", "host": "balancer.example.org"}]
    )
    """The balancer of all services. Default: none; then clients have to find the servers themselves, and only jobs
    that announce models are demand."""
    ha: HaSection | None = Field(None, examples=[{"lease": "10s"}])
    """Several controllers with one record. Default: one controller."""
    web: WebSection = Field(WebSection(), examples=[{"listen": "127.0.0.1:8618"}])
    """The web service."""


# -----------------------------------------------------------------------------------------------------------
# site file


@settings_of(SitePolicy, "max_drones", "max_starts_per_tick")
class LimitsSection(ConfigSection):
    """The limits of the site. They count drones that were requested and are not confirmed gone."""


@settings_of(SitePolicy, "view_max_age_s", "grace_s")
class TimeoutsSection(ConfigSection):
    """The timeouts of the site."""

    @section_check
    def _times_agree(self) -> Self:
        policy = as_settings(SitePolicy, self, site="")
        order_deadline = format_duration(policy.order_deadline_s)
        poll_deadline = format_duration(policy.poll_deadline_s)
        if policy.order_confirm_s < policy.order_deadline_s:
            consequence = (
                f"unfinished orders would count as lost; write at least `{order_deadline}`"
            )
            raise mistake_at("order_confirm", f"is shorter than `order_deadline`: {consequence}")
        if policy.view_max_age_s <= policy.poll_deadline_s:
            message = (
                f"must be longer than `poll_deadline` ({poll_deadline}): a view may take that long"
            )
            raise mistake_at("view_max_age", message)
        return self


_NODES = r"^[A-Za-z0-9*?\[\]._-]{1,255}$"

_NodePattern = Annotated[str, WithJsonSchema({"type": "string", "pattern": _NODES})]


def _node_patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(_NODES, name):
            raise ValueError(
                f"has `{name[:80]}`: a node name or a pattern, of letters, digits, `.-_*?` and `[...]`"
            )
    return names


class _NodesSection(ConfigSection):
    nodes: Annotated[tuple[_NodePattern, ...], AfterValidator(_node_patterns)] = Field(
        ("*",), min_length=1, examples=[["topas-a100-*"]]
    )
    """Node names; `*`, `?` and `[...]` as in file names. The first entry that matches a node applies."""


@settings_of(Reserve, "cpus", "disk_mib")
class BlockingSection(_NodesSection):
    """Resources that each free GPU of certain nodes reserves for its next drone, so that CPU work cannot block it."""

    @section_check
    def _keeps_something(self) -> Self:
        reserve = as_settings(Reserve, self)
        if not (reserve.cpus or reserve.memory_mib or reserve.disk_mib):
            raise mistake_at(
                "cpus", "nothing is reserved: write at least one of `cpus`, `memory` and `disk`"
            )
        return self


class MigSection(_NodesSection):
    """MIG instances that the site's administrator makes of each GPU of certain nodes (`provisioner render mig`)."""

    gpu_model: Literal[
        "A100-40", "A100-80", "H100-80", "H100-94", "H100-96", "H200-141", "A30-24"
    ] = Field(examples=["A100-40"])
    """Model and memory of the GPUs in GB, which decide the profiles. `H100-96` is also for GH200 and H20."""
    layout: tuple[str, ...] = Field(
        min_length=1, max_length=MOST_SLICES, examples=[["3g.20gb", "2g.10gb", "1g.5gb"]]
    )
    """The profile of each instance."""

    @section_check
    def _can_be_made(self) -> Self:
        if message := mig.mistake(self.gpu_model, self.layout):
            raise mistake_at("layout", message)
        return self


NodeSections = TypeVar("NodeSections", tuple[BlockingSection, ...], tuple[MigSection, ...])


def _each_is_reached(entries: NodeSections, info: ValidationInfo) -> NodeSections:
    for first, entry in enumerate(entries[:-1]):
        if any(not pattern.strip("*") for pattern in entry.nodes):
            remedy = "the first matching entry applies; move this one before it"
            raise mistake_at(
                first + 1,
                f"never reached: `{info.field_name}[{first}]` is for all nodes, and {remedy}",
            )
    return entries


@settings_of(SitePolicy, "preempt_proactively", "min_runtime_s")
class OwnerSection(ConfigSection):
    """The behaviour of drones towards the owner of the hardware."""


_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RESERVED_ATTRIBUTES = {"droneid", "dronesite", "dronetype"}


def _slot_ad(ad: dict[str, str]) -> dict[str, str]:
    seen: dict[str, str] = {}
    for name, expression in ad.items():
        if not _ATTRIBUTE.fullmatch(name):
            raise mistake_at(
                name, f"`{name}` is not a ClassAd attribute name: letters, digits and `_` only"
            )
        if name.lower() in _RESERVED_ATTRIBUTES:
            raise mistake_at(name, f"`{name}` is set by the provisioner: remove it")
        if name.lower() in seen:
            raise mistake_at(
                name, f"`{name}` and `{seen[name.lower()]}` are the same attribute: remove one"
            )
        if not expression.strip() or not expression.isprintable():
            raise mistake_at(
                name, 'expected a ClassAd expression on one line: write `"true"` or `"\\"text\\""`'
            )
        seen[name.lower()] = name
    return ad


@settings_of(Benchmark, "name", "average")
class BenchmarkSection(ConfigSection):
    """A result of a benchmark, for pilots and accounting."""


_VERSIONED_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}:[A-Za-z0-9._-]{1,32}")


@settings_of(InferenceServer, "service", "metrics")
class ServerSection(ConfigSection):
    """The inference server that each drone of the type runs in place of a node of the pool."""

    @section_check
    def _can_run(self) -> Self:
        server = as_settings(InferenceServer, self)
        if not server.models:
            raise mistake_at("models", "no model: write at least one, such as `deepmet:3`")
        for each in server.models:
            if not _VERSIONED_MODEL.fullmatch(each):
                raise mistake_at(
                    "models",
                    f"`{each[:80]}` is not a model with its version: write `name:version`, such as `deepmet:3`",
                )
        if not (server.command or server.container):
            raise mistake_at("command", "nothing to run: write `command`, `container` or both")
        last = server.first_port + server.ports - 1
        if last > 65535:
            least = 65536 - server.first_port
            raise mistake_at("ports", f"the last port would be {last}: write at most `{least}`")
        return self


@settings_of(DroneType, "gpu_milli", "max_drones")
class _TypeSettings(ConfigSection):
    pass


class TypeSection(_TypeSettings):
    """A drone type: a shape of drones that the site can start."""

    ad: Annotated[dict[str, str], AfterValidator(_slot_ad)] = Field(
        {}, examples=[{"HasCVMFS": "true"}]
    )
    """Further ClassAd attributes of the drone's slot, as expressions in quotes, for matching."""
    benchmark: Annotated[tuple[BenchmarkSection, ...], AfterValidator(_names_differ)] = Field(
        (), examples=[[{"name": "HEPscore23", "value": 14.4, "date": "2026-11-01"}]]
    )
    """Results of benchmarks per core and per GPU, for the slot's attributes `ApelSpecs`,
    `ApelScaling`, `HEPSPEC_PER_CORE`, `GpuSpecs` and `BenchmarkDates`."""
    speed: dict[Literal["fp32", "fp64"], Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict, examples=[{"fp32": 19.5, "fp64": 9.7}]
    )
    """Peak speed of each GPU by precision, in TFLOPS: the slot's attribute `GpuSpeed`."""

    server: ServerSection | None = Field(
        None,
        examples=[{"service": "cms", "models": ["deepmet:3"], "command": "exec tritonserver"}],
    )
    """Inference server that each drone of the type runs; it takes no jobs then. Default: none."""

    def shape(self, site: str, name: str) -> DroneType:
        """Return the drone type without what follows from its site: the margin, and the reserve of free GPUs."""
        benchmark = tuple(as_settings(Benchmark, each) for each in self.benchmark)
        server = as_settings(InferenceServer, self.server) if self.server else None
        shape = as_settings(
            DroneType, self, site=site, name=name, benchmark=benchmark, server=server
        )
        if server is None or shape.walltime_s:
            return shape
        return replace(shape, walltime_s=SERVER_WALLTIME_S)

    @section_check
    def _can_exist(self) -> Self:
        shape = self.shape("", "")
        if shape.gpu_milli == 0:
            _check_without_gpu(shape, self.model_fields_set)
        _check_vendor(shape)
        if shape.gpu_milli > WHOLE_GPU and shape.gpu_milli % WHOLE_GPU:
            problem = "more than one GPU must be a whole number"
            raise mistake_at("gpus", f"{problem}: write `1`, `2`, ... or a share below 1")
        for key, size_mib in (("memory", shape.memory_mib), ("disk", shape.disk_mib)):
            if size_mib == 0:
                raise mistake_at(key, f"must be more than 0: write `{key}: 20 GiB`")
        if shape.limits_part:
            if not shape.vram_mib:
                raise mistake_at("vram", "the limit of MPS is unknown: write `vram` of this part")
        elif shape.sharing is not Sharing.EXCLUSIVE or shape.shares > 1:
            _check_shares(shape)
        _check_vram_pool(shape)
        return self


def _check_without_gpu(shape: DroneType, written: Collection[str]) -> None:
    """Reject options of GPUs for a drone without one."""
    settings = {
        "gpu_model": shape.gpu_model,
        "vram": shape.vram_mib,
        "capability": shape.capability,
        "driver": shape.driver,
        "power": shape.power_w,
        "speed": shape.speed,
        "benchmark": any(each.per == "gpu" for each in shape.benchmark),
    }
    given = [key for key, value in settings.items() if value]
    given += sorted({"vendor", "target"} & set(written))
    if given:
        remedy = f"remove `{given[0]}`, or add a GPU"
        raise mistake_at(given[0], f"a CPU drone (`gpus: 0`) has no GPU: {remedy}")
    if shape.sharing is not Sharing.EXCLUSIVE:
        problem = "a CPU drone (`gpus: 0`) has no GPU to share"
        raise mistake_at("sharing", f"{problem}: remove `sharing`")


def _check_shares(shape: DroneType) -> None:
    """Reject shares that do not agree with the kind of sharing."""
    key = "sharing" if shape.shares == 1 else "shares"
    if shape.server:
        problem = "only jobs share the GPU of one drone, and a server takes no jobs"
        remedy = "remove it; for a part of a GPU write `gpus: 0.25`"
        raise mistake_at(key, f"{problem}: {remedy}, with `sharing: mps` to limit its VRAM")
    if shape.shares > 1 and shape.sharing is Sharing.EXCLUSIVE:
        remedy = "add `sharing: mps`, `mig` or `time-sliced`, or remove `shares`"
        raise mistake_at(key, f"an exclusive GPU has no shares: {remedy}")
    if shape.sharing is Sharing.MIG and shape.shares > MOST_SLICES:
        problem = f"MIG has at most {MOST_SLICES} slices per GPU"
        raise mistake_at(key, f"{problem}: write at most {MOST_SLICES}")
    if shape.gpu_milli < WHOLE_GPU:
        remedy = f"write `gpus: 1`, or remove `{key}`"
        raise mistake_at(key, f"a share of a GPU cannot be shared: {remedy}")
    if shape.shares == 1:
        remedy = "write `shares: 4`, or remove `sharing`"
        remedy += " (a type of one instance has none)" if shape.sharing is Sharing.MIG else ""
        problem = f"`{shape.sharing.value}` with one share means exclusive"
        raise mistake_at(key, f"{problem}: {remedy}")


def _check_vram_pool(shape: DroneType) -> None:
    is_shared = shape.sharing is Sharing.MPS and shape.shares > 1
    if shape.vram_pool and not (is_shared and shape.gpu_milli == WHOLE_GPU and shape.vram_mib):
        problem = "a pool is the VRAM of one GPU that several jobs share"
        remedy = (
            "write `sharing: mps`, `gpus: 1`, `shares` above 1 and `vram`, or remove `vram_pool`"
        )
        raise mistake_at("vram_pool", f"{problem}: {remedy}")


def _check_vendor(shape: DroneType) -> None:
    """Reject options that the GPUs of the vendor do not have."""
    for prefix, vendor, name in (("sm_", NVIDIA, "NVIDIA"), ("gfx", "amd", "AMD")):
        if shape.target.lower().startswith(prefix) and shape.vendor != vendor:
            remedy = f"write `vendor: {vendor}`, or correct `target`"
            raise mistake_at("target", f"`{shape.target}` is of GPUs of {name}: {remedy}")
    if shape.vendor == NVIDIA:
        found = re.match(r"sm_(\d+)", shape.target)
        if found and shape.capability and int(found[1]) != shape.capability:
            capability = f"{shape.capability / 10:.1f}"
            raise mistake_at(
                "target", f"`{shape.target}` is not capability {capability}: change one of them"
            )
        return
    for key, given in (("capability", shape.capability), ("driver", shape.driver)):
        if given:
            raise mistake_at(key, f"only GPUs of NVIDIA have a `{key}`: remove `{key}`")
    if shape.sharing in (Sharing.MPS, Sharing.MIG):
        raise mistake_at(
            "sharing", f"`{shape.sharing.value}` is for GPUs of NVIDIA: write `time-sliced`"
        )


@settings_of(SitePolicy, "enabled", "queue_when_full")
class _SiteSettings(ConfigSection):
    site: Name = Field(examples=["local"])
    """Name of the site."""
    adapter: str = Field(examples=["local"])
    """Name of the site adapter."""


class SiteFile(_SiteSettings):
    """The site file: one place where drones run, the drone types that it can start, and its limits."""

    glidein_site: str = Field(
        "", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$", examples=["FZK-LCG2"]
    )
    """Name of the site in the grid: `GLIDEIN_Site` of its drones' slots, which pilots report."""
    dcgm_jobs: str = Field(
        "", pattern=r"^(/[A-Za-z0-9._/+@=-]{1,255})?$", examples=["/run/dcgm-job-map"]
    )
    """Directory on the nodes, writable for drones, that dcgm-exporter reads (`--hpc-job-mapping-dir`)."""
    limits: LimitsSection = Field(LimitsSection(), examples=[{"max_drones": 4}])
    """Limits of the site."""
    timeouts: TimeoutsSection = Field(TimeoutsSection(), examples=[{"booting": "10min"}])
    """Timeouts of the site."""
    blocking: Annotated[tuple[BlockingSection, ...], AfterValidator(_each_is_reached)] = Field(
        (), examples=[[{"cpus": 8, "memory": "20 GiB"}]]
    )
    """CPUs, memory and disk that free GPUs reserve on their nodes."""
    mig: Annotated[tuple[MigSection, ...], AfterValidator(_each_is_reached)] = Field(
        (), examples=[[{"gpu_model": "A100-40", "layout": ["3g.20gb", "3g.20gb"]}]]
    )
    """MIG layouts of nodes; `check --live` reports nodes that differ, where the site can be asked."""
    owner: OwnerSection = Field(OwnerSection(), examples=[{"preempt_proactively": True}])
    """Behaviour towards the owner of the hardware."""
    types: dict[Name, TypeSection] = Field(
        min_length=1,
        examples=[{"a100": {"gpus": 1, "cpus": 8, "memory": "20 GiB", "disk": "50 GiB"}}],
    )
    """Drone types by name."""
    options: dict[str, Any] = Field({}, examples=[{}])
    """Options of the adapter."""

    @property
    def policy(self) -> SitePolicy:
        """Return the policy of the site."""
        return as_settings(
            SitePolicy,
            *(self, self.limits, self.timeouts, self.owner),
            blocking=tuple(Reserve(**dict(each)) for each in self.blocking),
            mig=tuple(MigLayout(**dict(each)) for each in self.mig),
        )

    @property
    def shapes(self) -> dict[str, DroneType]:
        """Return the drone types by name, without what follows from the site."""
        return {name: section.shape(self.site, name) for name, section in self.types.items()}
