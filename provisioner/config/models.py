"""The controller file and the site file as pydantic models: every key with its unit, default, meaning and an example.

The options of adapters are validated by each adapter's own ``Config``.
The reference and the JSON Schemas are generated from these classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
    model_validator,
)
from pydantic_core import PydanticCustomError

from provisioner import mig
from provisioner.config.credentials import authorities_credential, certificate_credential
from provisioner.config.units import (
    Capability,
    ConfigPath,
    CudaVersion,
    Duration,
    Gpus,
    Name,
    PositiveDuration,
    Size,
)
from provisioner.durations import format_duration
from provisioner.model import (
    NVIDIA,
    WHOLE_GPU,
    Credential,
    LowUseAction,
    Policy,
    Sharing,
    SitePolicy,
)
from provisioner.sharing import MOST_SHARES, MOST_SLICES

_POLICY_DEFAULTS = Policy()
_LOW_USE_DEFAULTS = _POLICY_DEFAULTS.low_use
_SITE_DEFAULTS = SitePolicy(site="")
_MAX_CONTROLLER_NAME = 32
"""Most characters: a drone's id begins with the name and is a DNS label of at most 63."""


def mistake_at(key: str | int, message: str) -> PydanticCustomError:
    """Return an error, found by comparing keys of one mapping or entries of one list, to be reported at ``key``."""
    return PydanticCustomError("mistake_at", "{message}", {"message": message, "at": key})


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

    path: ConfigPath = Field(examples=["var/provisioner.db"])
    """SQLite file of the store; its directory is created if needed. One controller at a time uses it."""
    keep: PositiveDuration = Field(30 * 86400.0, examples=["30d"])
    """Finished drones, plans, events and completed jobs that are older than this are deleted."""
    series: PositiveDuration = Field(400 * 86400.0, examples=["400d"])
    """Hourly time series are kept for this long; those by the minute for 2 days, by ten minutes for 30 days."""
    snapshots: int = Field(50, ge=0, le=100_000, examples=[50])
    """Number of full snapshots kept, of the newest ticks that acted (for `provisioner replay`)."""


class OverlaySection(ConfigSection):
    """The pool where jobs wait and drones join."""

    adapter: str = Field(examples=["htcondor"])
    """Name of the overlay adapter."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{}])
    """Options of the adapter, see below."""


def _two_hours(hours: tuple[int, ...]) -> tuple[int, ...]:
    if len(hours) != 2 or not all(0 <= hour <= 24 for hour in hours) or hours[0] == hours[1]:
        raise ValueError(
            "expected two different hours from 0 to 24: write `[7, 17]`, or remove `hours` for always"
        )
    return hours


class HeadroomSection(ConfigSection):
    """Headroom: free room for a number of equal jobs that have not been submitted yet."""

    name: Name = Field(examples=["day-shift"])
    """Name of this headroom, as shown to people."""
    count: int = Field(ge=1, le=100_000, examples=[2])
    """Number of jobs of this shape."""
    gpus: Gpus = Field(WHOLE_GPU, examples=[1])
    """GPUs of each job."""
    vram: Size = Field(0, examples=["40 GiB"])
    """Memory that a job needs on each GPU."""
    cpus: int = Field(1, ge=1, le=100_000, examples=[8])
    """CPU cores of each job."""
    memory: Size = Field(1024, examples=["20 GiB"])
    """Memory of each job."""
    disk: Size = Field(0, examples=["10 GiB"])
    """Scratch disk of each job."""
    site: Name | None = Field(None, examples=["topas"])
    """Only at this site. Default: any site."""
    types: tuple[Name, ...] = Field((), examples=[["a100"]])
    """Only drones of these types. Default: any type that fits."""
    hours: Annotated[tuple[int, ...], AfterValidator(_two_hours)] | None = Field(
        None, examples=[[7, 17]]
    )
    """From the first full hour of the day (UTC) up to the second; past midnight if the second is
    smaller. Default: always."""


def _names_differ(entries: tuple[HeadroomSection, ...]) -> tuple[HeadroomSection, ...]:
    names = [entry.name for entry in entries]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise mistake_at(n, f"duplicate headroom `{name}`: choose another name")
    return entries


class LowUseSection(ConfigSection):
    """Job classes (the jobs of a user with one size) that use little of their GPUs."""

    action: LowUseAction = Field(_LOW_USE_DEFAULTS.action, examples=["warn"])
    """`warn`: an event, and a note in `status`. `none`: neither."""
    below: float = Field(_LOW_USE_DEFAULTS.below, gt=0, le=1, examples=[0.15])
    """Low use is a mean use of less than this part of the GPUs that the jobs held."""
    jobs: int = Field(_LOW_USE_DEFAULTS.jobs, ge=1, le=1_000_000, examples=[20])
    """Fewest measured jobs of a class."""
    window: PositiveDuration = Field(_LOW_USE_DEFAULTS.window_s, examples=["7d"])
    """Only jobs that ended within this time count; at most `store.keep`."""


class PolicySection(ConfigSection):
    """The policy for all sites together."""

    interval: PositiveDuration = Field(15.0, examples=["15s"])
    """Longest pause between two ticks."""
    active_interval: PositiveDuration = Field(2.0, examples=["2s"])
    """Pause between two ticks while orders are in progress; at most `interval`."""
    idle_timeout: PositiveDuration = Field(_POLICY_DEFAULTS.idle_timeout_s, examples=["10min"])
    """Longest time that a drone is kept without a job, at least `interval`. Once the first drone of
    a site has joined, a shorter time applies: the cost of another start there, or the time that
    would have cost least over the gaps between jobs (`provisioner estimates` and `provisioner
    explain drone` show it). With `idle_fixed` it applies exactly."""
    idle_fixed: bool = Field(_POLICY_DEFAULTS.idle_fixed, examples=[True])
    """Keep an idle drone for `idle_timeout`, regardless of estimates and of how long it took to
    start. Longer only while jobs wait that it could run; shorter only if it takes large jobs alone
    and smaller ones lack its room."""
    max_drones: int = Field(_POLICY_DEFAULTS.max_drones, ge=0, le=1_000_000, examples=[1000])
    """Most drones at one time at all sites together; 0 starts nothing."""
    max_gpus: Gpus | None = Field(None, examples=[500])
    """Most GPUs at one time, at all sites together."""
    overlay_max_age: PositiveDuration = Field(_POLICY_DEFAULTS.overlay_max_age_s, examples=["2min"])
    """A view of the pool that is older than this is not used for decisions; at least `interval`."""
    slot_max_age: PositiveDuration = Field(_POLICY_DEFAULTS.slot_max_age_s, examples=["15min"])
    """A slot without an update for this long does not count as alive."""
    max_unhealthy_fraction: float = Field(
        _POLICY_DEFAULTS.max_unhealthy_fraction, gt=0, le=1, examples=[0.2]
    )
    """If more than this share of all drones is unhealthy at once, nothing is started or stopped."""
    min_unhealthy: int = Field(_POLICY_DEFAULTS.min_unhealthy, ge=1, examples=[5])
    """Fewer unhealthy drones than this never pause the controller."""
    orphan_grace: PositiveDuration = Field(_POLICY_DEFAULTS.orphan_grace_s, examples=["15min"])
    """Drones with this controller's name that are not on record are left alone for so long, for an
    operator to decide (`provisioner sites adopt-orphans` or `stop-orphans`). Then those without a
    job are stopped."""
    waiting_cost: float = Field(_POLICY_DEFAULTS.waiting_cost, ge=0, le=1e6, examples=[0.3])
    """GPU-seconds that one second of one job's waiting is worth. The larger, the more drones are
    started for short jobs and beside drones that wait in a queue, and the longer idle drones are
    kept; 0: a drone for each job that waits."""
    waiting_cost_by_group: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        {}, examples=[{"cms.urgent": 5}]
    )
    """The same for the jobs of accounting groups, and of the groups within these."""
    longest_hole: PositiveDuration = Field(_POLICY_DEFAULTS.longest_hole_s, examples=["12h"])
    """A node is reserved for a job of several GPUs only if its free GPUs wait for the last one no longer than this."""
    carbon: float | None = Field(None, ge=0, le=10_000, examples=[380])
    """Grams of CO2 per kWh of electricity, for the CO2 of jobs on types with `power`."""
    fault_limit: int = Field(_POLICY_DEFAULTS.fault_limit, ge=1, le=20, examples=[2])
    """A user of whom so many jobs faulted on GPUs shared by MPS or time-slicing, or were held for
    more VRAM than their share, in at least two drones, gets exclusive GPUs only."""
    fault_window: PositiveDuration = Field(_POLICY_DEFAULTS.fault_window_s, examples=["7d"])
    """Only faults of this last period count for `fault_limit`."""

    headroom: Annotated[tuple[HeadroomSection, ...], AfterValidator(_names_differ)] = Field(
        (), examples=[[{"name": "day-shift", "count": 2, "hours": [7, 17]}]]
    )
    """Free room kept for jobs that have not been submitted yet."""
    low_use: LowUseSection = Field(
        default_factory=LowUseSection, examples=[{"action": "warn", "below": 0.15}]
    )
    """Job classes that use little of their GPUs."""

    @model_validator(mode="after")
    def _times_agree(self) -> Self:
        interval = format_duration(self.interval)
        if self.active_interval > self.interval:
            raise mistake_at(
                "active_interval",
                f"is longer than `interval` ({interval}): write at most `{interval}`",
            )
        for key, consequence in (
            ("idle_timeout", "drones would leave between two ticks"),
            ("overlay_max_age", "views would always be too old"),
        ):
            if getattr(self, key) < self.interval:
                raise mistake_at(
                    key, f"is shorter than `interval`: {consequence}; write at least `{interval}`"
                )
        return self


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
    client_ca: ConfigPath | None = Field(None, examples=["/etc/grid-security/our-ca.pem"])
    """File, or directory with hashed names, of the authorities of client certificates. Default: none is asked for.

    Each of them may issue every subject: `signing_policy` files are not read. Name a file with
    those that issue yours.
    """
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
    """Scheme and host as browsers see them; a change from a page of any other origin is refused."""
    groups: dict[str, Role] = Field(
        default_factory=dict, examples=[{"gpu-users": "read", "gpu-operators": "operate"}]
    )
    """Role of each group; a user has the highest of theirs. `*` stands for everybody who is logged in."""
    group_separator: str = Field(",", min_length=1, max_length=8, examples=["|"])
    """Text between the groups. A group with it in its name counts as several: choose what no name has."""

    @model_validator(mode="after")
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
    """Audiences that are ours. Tokens for any service pass if `https://wlcg.cern.ch/jwt/v1/any` or `ANY` is in here."""


class WebSection(ConfigSection):
    """The web service (`provisioner serve`). It reads this section when it starts."""

    socket: ConfigPath | None = Field(None, examples=["/run/provisioner/web.sock"])
    """Unix socket, for the owner and the group of the service (mode 0660). Default: `web.sock` beside the store."""
    listen: Annotated[str, AfterValidator(_loopback)] = Field(
        "127.0.0.1:8618", examples=["127.0.0.1:8618"]
    )
    """Loopback address and port; all who reach it may read. `""`: none."""
    operators: WebOperatorsSection = Field(
        default_factory=WebOperatorsSection, examples=[{"users": ["ann"]}]
    )
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
    policy: PolicySection = Field(default_factory=PolicySection, examples=[{"interval": "15s"}])
    """The policy for all sites together."""
    web: WebSection = Field(default_factory=WebSection, examples=[{"listen": "127.0.0.1:8618"}])
    """The web service."""


# -----------------------------------------------------------------------------------------------------------
# site file


class LimitsSection(ConfigSection):
    """The limits of the site. They count drones that were requested and are not confirmed gone."""

    max_drones: int = Field(_SITE_DEFAULTS.max_drones, ge=0, le=1_000_000, examples=[4])
    """Most drones at one time; 0 starts nothing."""
    max_gpus: Gpus | None = Field(None, examples=[4])
    """Most GPUs at one time."""
    max_pending: int = Field(_SITE_DEFAULTS.max_pending, ge=1, examples=[4])
    """Most drones that were requested and have not joined the pool yet."""
    max_starts_per_tick: int = Field(_SITE_DEFAULTS.max_starts_per_tick, ge=1, examples=[4])
    """Most drones requested in one tick."""


class TimeoutsSection(ConfigSection):
    """The timeouts of the site."""

    view_max_age: PositiveDuration = Field(_SITE_DEFAULTS.view_max_age_s, examples=["2min"])
    """A view of the site that is older than this is not used; longer than `poll_deadline`."""
    poll_deadline: PositiveDuration = Field(_SITE_DEFAULTS.poll_deadline_s, examples=["20s"])
    """Longest time for one poll of the site."""
    order_deadline: PositiveDuration = Field(_SITE_DEFAULTS.order_deadline_s, examples=["60s"])
    """Longest time for one batch of starts or stops."""
    order_confirm: PositiveDuration = Field(_SITE_DEFAULTS.order_confirm_s, examples=["2min"])
    """After this time, a poll without a requested drone means that the order never arrived; at
    least `order_deadline`."""
    missing: PositiveDuration = Field(_SITE_DEFAULTS.missing_s, examples=["30s"])
    """A drone that is missing from at least two polls, for this long, is gone."""
    queued: PositiveDuration = Field(_SITE_DEFAULTS.queued_s, examples=["24h"])
    """Longest time in the site's own queue."""
    booting: PositiveDuration = Field(_SITE_DEFAULTS.booting_s, examples=["10min"])
    """Longest time from running at the site to joining the pool."""
    joining: PositiveDuration = Field(_SITE_DEFAULTS.joining_s, examples=["5min"])
    """Longest time in the pool without accepting jobs (the GPU check)."""
    slot_loss: PositiveDuration = Field(_SITE_DEFAULTS.slot_loss_s, examples=["5min"])
    """Longest time that a joined drone may be missing from the pool while the site still runs it."""
    idle: PositiveDuration | None = Field(None, examples=["10min"])
    """Longest time that a drone of this site is kept without a job; a drone that took longer from
    its start to the pool is kept for that long, up to three times this. Estimates shorten it, see
    `policy.idle_timeout`. Default: `policy.idle_timeout`."""
    idle_fixed: bool | None = Field(None, examples=[True])
    """Keep an idle drone of this site for exactly `idle`, regardless of estimates and of how long
    it took to start. Default: `policy.idle_fixed`."""
    draining: PositiveDuration = Field(_SITE_DEFAULTS.draining_s, examples=["24h"])
    """Longest time for the last jobs of a draining drone."""
    stopping: PositiveDuration = Field(_SITE_DEFAULTS.stopping_s, examples=["1min"])
    """A drone that has not stopped after this time is stopped again."""
    grace: Duration = Field(_SITE_DEFAULTS.grace_s, examples=["30s"])
    """Time that the site gives a drone between notice and kill."""

    @model_validator(mode="after")
    def _times_agree(self) -> Self:
        order_deadline, poll_deadline = (
            format_duration(self.order_deadline),
            format_duration(self.poll_deadline),
        )
        if self.order_confirm < self.order_deadline:
            consequence = (
                f"unfinished orders would count as lost; write at least `{order_deadline}`"
            )
            raise mistake_at("order_confirm", f"is shorter than `order_deadline`: {consequence}")
        if self.view_max_age <= self.poll_deadline:
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


class BlockingSection(ConfigSection):
    """Resources that each free GPU of certain nodes reserves for its next drone, so that CPU work cannot block it."""

    nodes: Annotated[tuple[_NodePattern, ...], AfterValidator(_node_patterns)] = Field(
        ("*",), min_length=1, examples=[["topas-a100-*"]]
    )
    """Node names; `*`, `?` and `[...]` as in file names. The first entry that matches a node applies."""
    cpus: int = Field(0, ge=0, le=100_000, examples=[8])
    """CPU cores per free GPU."""
    memory: Size = Field(0, examples=["20 GiB"])
    """Memory per free GPU."""
    disk: Size = Field(0, examples=["50 GiB"])
    """Scratch disk per free GPU."""

    @model_validator(mode="after")
    def _keeps_something(self) -> Self:
        if not (self.cpus or self.memory or self.disk):
            raise mistake_at(
                "cpus", "nothing is reserved: write at least one of `cpus`, `memory` and `disk`"
            )
        return self


class MigSection(ConfigSection):
    """MIG instances that the site's administrator makes of each GPU of certain nodes (`provisioner render mig`)."""

    nodes: Annotated[tuple[_NodePattern, ...], AfterValidator(_node_patterns)] = Field(
        ("*",), min_length=1, examples=[["topas-a100-*"]]
    )
    """Node names; `*`, `?` and `[...]` as in file names. The first entry that matches a node applies."""
    gpu_model: Literal[
        "A100-40", "A100-80", "H100-80", "H100-94", "H100-96", "H200-141", "A30-24"
    ] = Field(examples=["A100-40"])
    """Model and memory of the GPUs in GB, which decide the profiles. `H100-96` is also for GH200 and H20."""
    layout: tuple[str, ...] = Field(
        min_length=1, max_length=MOST_SLICES, examples=[["3g.20gb", "2g.10gb", "1g.5gb"]]
    )
    """The profile of each instance."""

    @model_validator(mode="after")
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


class OwnerSection(ConfigSection):
    """The behaviour of drones towards the owner of the hardware."""

    preempt_proactively: bool = Field(_SITE_DEFAULTS.preempt_proactively, examples=[True])
    """Drain drones for the owner's waiting jobs before the site preempts them; `false`: leave it to the site."""
    min_runtime: Duration = Field(_SITE_DEFAULTS.min_runtime_s, examples=["0s"])
    """Drones whose first job began less than this time ago are not drained; the owner may have to wait that long."""


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


class TypeSection(ConfigSection):
    """A drone type: a shape of drones that the site can start."""

    gpus: Gpus = Field(examples=[1])
    """GPUs of one drone: a whole number, or a share of one in steps of 0.001; `0` is a CPU drone."""
    gpu_model: str = Field(
        "", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._()/+-]{0,127}$", examples=["A100-SXM4-40GB"]
    )
    """Model of the GPUs as the driver names it. `NVIDIA`, `Tesla` or `GeForce` in front and case
    make no difference, nor do dashes for spaces in common models."""
    vram: Size = Field(0, examples=["40 GiB"])
    """Memory of each GPU."""
    capability: Capability = Field(0, examples=[8.0])
    """CUDA compute capability of the GPUs."""
    driver: CudaVersion = Field(0, examples=["12.4"])
    """Newest CUDA version that the driver supports, in quotes."""
    vendor: Literal["nvidia", "amd", "intel"] = Field("nvidia", examples=["nvidia"])
    """Vendor of the GPUs. Only those of NVIDIA have a `capability` and a `driver`."""
    target: str = Field("", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$", examples=["gfx90a"])
    """Instruction set of the GPUs, the attribute `GpuTarget` of the slot. Default: `sm_80` for `capability: 8.0`."""
    arch: Literal["X86_64", "aarch64", "ppc64le"] = Field("X86_64", examples=["X86_64"])
    """CPU architecture."""
    cpus: int = Field(ge=1, le=100_000, examples=[8])
    """CPU cores of one drone."""
    memory: Size = Field(examples=["20 GiB"])
    """Memory of one drone."""
    disk: Size = Field(examples=["50 GiB"])
    """Scratch disk of one drone."""
    walltime: PositiveDuration | None = Field(None, examples=["24h"])
    """Longest run of a drone at the site; longer than `timeouts.grace`. Default: no limit."""
    sharing: Sharing = Field(Sharing.EXCLUSIVE, examples=["exclusive"])
    """Way in which the jobs of one drone share a GPU. All but `exclusive` need `shares`."""
    shares: int = Field(1, ge=1, le=MOST_SHARES, examples=[4])
    """Number of shares that each GPU is offered as, to jobs that request a part of a GPU: each gets
    one share, or as many as it requests, with their part of the VRAM. Jobs that request a whole GPU
    do not match. Not with `sharing: exclusive`; at most 32, with `mig` at most 7."""
    vram_pool: bool = Field(False, examples=[True])
    """With `sharing: mps`: jobs request VRAM in MiB (`request_gpumem`) instead of equal shares, and
    at least an equal share is counted for each. For `gpus: 1`, with `vram` and `shares` (the most
    jobs on the GPU)."""
    power: float = Field(0.0, ge=0, le=100_000, examples=[400])
    """Watts of one busy GPU, with its part of the node, for the energy of jobs; `0`: unknown."""
    price: float = Field(1.0, ge=0, le=1e9, examples=[1.0])
    """Relative cost of one GPU-hour; the cheapest type that fits is started first."""
    max_drones: int | None = Field(None, ge=0, examples=[2])
    """Most drones of this type at one time; 0 starts none."""
    ad: Annotated[dict[str, str], AfterValidator(_slot_ad)] = Field(
        default_factory=dict, examples=[{"HasCVMFS": "true"}]
    )
    """Further ClassAd attributes of the drone's slot, as expressions in quotes, for matching."""

    @model_validator(mode="after")
    def _can_exist(self) -> Self:
        if self.gpus == 0:
            self._check_without_gpu()
        self._check_vendor()
        if self.gpus > WHOLE_GPU and self.gpus % WHOLE_GPU:
            problem = "more than one GPU must be a whole number"
            raise mistake_at("gpus", f"{problem}: write `1`, `2`, ... or a share below 1")
        for key, size_mib in (("memory", self.memory), ("disk", self.disk)):
            if size_mib == 0:
                raise mistake_at(key, f"must be more than 0: write `{key}: 20 GiB`")
        if self.sharing is not Sharing.EXCLUSIVE or self.shares > 1:
            self._check_shares()
        self._check_vram_pool()
        return self

    def _check_without_gpu(self) -> None:
        """Reject options of GPUs for a drone without one."""
        given = [
            key
            for key in ("gpu_model", "vram", "capability", "driver", "power")
            if getattr(self, key)
        ]
        given += sorted({"vendor", "target"} & self.model_fields_set)
        if given:
            remedy = f"remove `{given[0]}`, or add a GPU"
            raise mistake_at(given[0], f"a CPU drone (`gpus: 0`) has no GPU: {remedy}")
        if self.sharing is not Sharing.EXCLUSIVE:
            problem = "a CPU drone (`gpus: 0`) has no GPU to share"
            raise mistake_at("sharing", f"{problem}: remove `sharing`")

    def _check_shares(self) -> None:
        """Reject shares that do not agree with the kind of sharing."""
        key = "sharing" if self.shares == 1 else "shares"
        if self.shares > 1 and self.sharing is Sharing.EXCLUSIVE:
            remedy = "add `sharing: mps`, `mig` or `time-sliced`, or remove `shares`"
            raise mistake_at(key, f"an exclusive GPU has no shares: {remedy}")
        if self.sharing is Sharing.MIG and self.shares > MOST_SLICES:
            problem = f"MIG has at most {MOST_SLICES} slices per GPU"
            raise mistake_at(key, f"{problem}: write at most {MOST_SLICES}")
        if self.gpus < WHOLE_GPU:
            remedy = f"write `gpus: 1`, or remove `{key}`"
            raise mistake_at(key, f"a share of a GPU cannot be shared: {remedy}")
        if self.shares == 1:
            remedy = "write `shares: 4`, or remove `sharing`"
            remedy += " (a type of one instance has none)" if self.sharing is Sharing.MIG else ""
            problem = f"`{self.sharing.value}` with one share means exclusive"
            raise mistake_at(key, f"{problem}: {remedy}")

    def _check_vram_pool(self) -> None:
        is_shared = self.sharing is Sharing.MPS and self.shares > 1
        if self.vram_pool and not (is_shared and self.gpus == WHOLE_GPU and self.vram):
            problem = "a pool is the VRAM of one GPU that several jobs share"
            remedy = "write `sharing: mps`, `gpus: 1`, `shares` above 1 and `vram`, or remove `vram_pool`"
            raise mistake_at("vram_pool", f"{problem}: {remedy}")

    def _check_vendor(self) -> None:
        """Reject options that the GPUs of the vendor do not have."""
        for prefix, vendor, name in (("sm_", NVIDIA, "NVIDIA"), ("gfx", "amd", "AMD")):
            if self.target.lower().startswith(prefix) and self.vendor != vendor:
                remedy = f"write `vendor: {vendor}`, or correct `target`"
                raise mistake_at("target", f"`{self.target}` is of GPUs of {name}: {remedy}")
        if self.vendor == NVIDIA:
            found = re.match(r"sm_(\d+)", self.target)
            if found and self.capability and int(found[1]) != self.capability:
                capability = f"{self.capability / 10:.1f}"
                raise mistake_at(
                    "target", f"`{self.target}` is not capability {capability}: change one of them"
                )
            return
        for key in ("capability", "driver"):
            if getattr(self, key):
                raise mistake_at(key, f"only GPUs of NVIDIA have a `{key}`: remove `{key}`")
        if self.sharing in (Sharing.MPS, Sharing.MIG):
            raise mistake_at(
                "sharing", f"`{self.sharing.value}` is for GPUs of NVIDIA: write `time-sliced`"
            )


class SiteFile(ConfigSection):
    """The site file: one place where drones run, the drone types that it can start, and its limits."""

    site: Name = Field(examples=["local"])
    """Name of the site."""
    adapter: str = Field(examples=["local"])
    """Name of the site adapter."""
    enabled: bool = Field(_SITE_DEFAULTS.enabled, examples=[True])
    """`false`: start nothing there; running drones may finish."""
    limits: LimitsSection = Field(default_factory=LimitsSection, examples=[{"max_drones": 4}])
    """Limits of the site."""
    price: float = Field(_SITE_DEFAULTS.price, ge=0, le=1e9, examples=[1.0])
    """Factor on the prices of the site's types: the operator's preference between sites."""
    queue_when_full: bool = Field(_SITE_DEFAULTS.queue_when_full, examples=[False])
    """Request drones even if the site reports no free capacity."""
    timeouts: TimeoutsSection = Field(
        default_factory=TimeoutsSection, examples=[{"booting": "10min"}]
    )
    """Timeouts of the site."""
    blocking: Annotated[tuple[BlockingSection, ...], AfterValidator(_each_is_reached)] = Field(
        (), examples=[[{"cpus": 8, "memory": "20 GiB"}]]
    )
    """CPUs, memory and disk that free GPUs reserve on their nodes."""
    mig: Annotated[tuple[MigSection, ...], AfterValidator(_each_is_reached)] = Field(
        (), examples=[[{"gpu_model": "A100-40", "layout": ["3g.20gb", "3g.20gb"]}]]
    )
    """MIG layouts of nodes; `check --live` reports nodes that differ, where the site can be asked."""
    owner: OwnerSection = Field(
        default_factory=OwnerSection, examples=[{"preempt_proactively": True}]
    )
    """Behaviour towards the owner of the hardware."""
    types: dict[Name, TypeSection] = Field(
        min_length=1,
        examples=[{"a100": {"gpus": 1, "cpus": 8, "memory": "20 GiB", "disk": "50 GiB"}}],
    )
    """Drone types by name."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{}])
    """Options of the adapter, see below."""
