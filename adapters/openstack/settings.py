"""Options of an OpenStack site."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from adapters.shared.parcel import check_environment
from provisioner.config.credentials import authorities_credential
from provisioner.config.messages import choices, type_findings
from provisioner.config.models import ConfigSection, mistake_at, section_check
from provisioner.config.units import ConfigPath, Duration, PositiveDuration, Secret, Size
from provisioner.interfaces import OptionFinding
from provisioner.model import Credential, DroneType

_RESERVED = re.compile(
    r"PROVISIONER_.*|DRONE_(?!USER$).*|_CONDOR_.*|CONDOR_(?!PREFIX$).*|CUDA_VISIBLE_DEVICES",
    re.IGNORECASE,
)
_OBJECT_NAME = r"^[^\s/,][^/,\n]{0,254}$"
_OPTIONAL_NAME = rf"^$|{_OBJECT_NAME}"
_METADATA_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_METADATA_PREFIX = "provisioner_"
"""Keys of a server's metadata that begin so are ours."""


def _check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not _METADATA_KEY.fullmatch(key) or len(value) > 255 or not value.isprintable():
            raise mistake_at(
                key,
                f"`{key[:40]}` cannot be metadata of a server: letters, digits, `_.:-`, and one line",
            )
        if key.startswith(_METADATA_PREFIX):
            raise mistake_at(key, f"`{key[:40]}` is set by the provisioner: remove it")
    return metadata


class Credentials(ConfigSection):
    """Credentials for Keystone: an application credential (`openstack application credential create`)."""

    url: str = Field(
        pattern=r"^https?://[^\s?#@]+$", examples=["https://keystone.example.org:5000/v3"]
    )
    """Keystone's address, with or without `/v3`."""
    application_credential_id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,255}$")
    """Id of the application credential."""
    application_credential_secret: Secret = Field()
    """Its secret. The file is read again at each login, so that it can be replaced."""


class CloudAccess(ConfigSection):
    """A cloud, and the account there: an entry of a clouds.yaml, or `auth`."""

    cloud: str = Field("", max_length=255, examples=["gridka"])
    """Name of an entry of clouds.yaml."""
    clouds_file: ConfigPath | None = None
    """The clouds.yaml, with a secure.yaml beside it. Default: `$OS_CLIENT_CONFIG_FILE`, else in the working
    directory, ~/.config/openstack or /etc/openstack. Vendors' profiles are not read."""
    auth: Credentials | None = None
    """Instead of an entry of clouds.yaml."""
    region: str = Field("", max_length=255)
    """Region. Default: as in clouds.yaml, else the first."""
    interface: Literal["", "public", "internal", "admin"] = ""
    """Interface of the catalogue's endpoints. Default: as in clouds.yaml, else public."""
    ca: ConfigPath | None = None
    """File with the trusted authorities, for https."""

    def credentials(self) -> Iterator[Credential]:
        """Yield the entry, if it cannot be read, and the authorities. The end of the entry is known after a login."""
        from adapters.openstack import clouds

        for path, problem in clouds.access_problems(self):
            yield Credential(path[0], self.cloud, problem=problem, doubtful=True)
        if self.ca is not None:
            yield authorities_credential("ca", self.ca)

    @section_check
    def _one_way(self) -> Self:
        if bool(self.cloud) == (self.auth is not None):
            raise ValueError(
                "one of `cloud` (an entry of clouds.yaml) and `auth` is wanted: write `cloud: NAME`"
            )
        if self.clouds_file is not None and not self.cloud:
            raise ValueError("`clouds_file` goes with `cloud`: write `cloud: NAME`, or remove it")
        return self


class BootVolume(ConfigSection):
    """A volume that a server boots from, made from the image and deleted with the server."""

    size: Size = Field(examples=["40 GiB"])
    """Size; rounded up to whole GiB."""
    type: str = Field("", pattern=r"^[^\n]{0,255}$")
    """Volume type. Default: the cloud's."""


class ServerOptions(ConfigSection):
    """Options of servers: for all of them, or for one drone type instead."""

    image: str = Field("", pattern=_OPTIONAL_NAME, examples=["drone-2026-11"])
    """Name or id of the image."""
    boot_volume: BootVolume | None = None
    """Servers boot from a volume made from the image. Default: from the image itself."""
    networks: list[Annotated[str, Field(pattern=_OBJECT_NAME)]] | None = Field(None, max_length=8)
    """Names or ids of networks; `[]` is none. Default: as the cloud sees fit."""
    security_groups: list[Annotated[str, Field(pattern=_OBJECT_NAME)]] = Field([], max_length=16)
    """Names or ids of security groups. Default: the project's."""
    key_pair: str = Field("", pattern=_OPTIONAL_NAME)
    """Key pair for a person who looks into a server. Default: none."""
    availability_zone: str = Field("", pattern=_OPTIONAL_NAME)
    """Availability zone."""
    server_group: str = Field("", pattern=r"^([0-9a-fA-F-]{32,36})?$")
    """Id of a server group (its policy keeps servers together or apart)."""
    config_drive: bool | None = None
    """True if the server gets its data by a config drive. Default: the cloud's."""
    metadata: Annotated[dict[str, str], AfterValidator(_check_metadata)] = Field(
        {}, examples=[{"cost_centre": "wlcg"}]
    )
    """Further metadata of each server."""


class OpenStackTypeConfig(ServerOptions):
    """Options of one drone type."""

    flavor: str = Field(pattern=_OBJECT_NAME, examples=["gpu.h100.1"])
    """Name or id of the flavour that servers of it have."""


class HostConfig(ConfigSection):
    """Hosts of one kind whose GPUs drones may have. A cloud does not show them to users: ask its operator."""

    names: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,253}$")]] = Field(
        min_length=1, max_length=1000, examples=[["gk-gpu-01", "gk-gpu-02"]]
    )
    """Their names, as nova-compute has them (`openstack compute service list`)."""
    types: list[str] = Field([])
    """Drone types that fit them. Default: all of the site."""
    gpus: int = Field(ge=1, le=64, examples=[4])
    """GPUs of one host."""
    cpus: int = Field(ge=1, le=4096, examples=[128])
    """VCPUs of one host, over-commitment included."""
    memory: Size = Field(examples=["1 TiB"])
    """Memory of one host."""
    disk: Size = Field(examples=["6 TB"])
    """Disk of one host."""


class OpenStackOwnerConfig(CloudAccess):
    """The owner's project, whose servers come first: an access that may read it (role `reader` is enough)."""

    names: str = Field("", max_length=255, examples=["^etp-"])
    """Only servers in whose name this regular expression is found. Default: all of the project."""
    wait: Duration = 3600.0
    """A server that found no host counts as waiting for so long after its last change."""

    @section_check
    def _regular(self) -> Self:
        try:
            re.compile(self.names)
        except re.error as error:
            raise mistake_at("names", f"`names` is no regular expression: {error}") from None
        return self


class OpenStackSiteConfig(CloudAccess, ServerOptions):
    """Options of the ``openstack`` site."""

    types: dict[str, OpenStackTypeConfig] = Field(min_length=1)
    """Flavour, and what else is special, of each drone type, by its name."""
    env: Annotated[
        dict[str, str], AfterValidator(partial(check_environment, reserved=_RESERVED))
    ] = Field({}, examples=[{"CONDOR_PREFIX": "/opt/condor"}])
    """Environment variables for each drone. `CONDOR_PREFIX`: directory of HTCondor in the image, instead of the
    overlay's `condor_prefix`. `DRONE_USER`: account of drones."""
    setup: ConfigPath | None = None
    """Shell script that root runs in each server before the drone, for mounts; no secrets. It is ended after 15
    minutes."""
    scratch: str = Field("/var/tmp", pattern=r"^/[A-Za-z0-9_./+-]*$")
    """Directory in the server below which its drone works."""
    hosts: list[HostConfig] = Field([])
    """The hosts with GPUs, where their operator tells them: only then is it known which servers
    stand in the owner's way, and where GPUs are free. Default: only quotas are looked at."""
    owner: OpenStackOwnerConfig | None = None
    """Owner whose servers have priority here. Without it the site's owner is ignored."""
    retain_finished: Duration = Field(600.0, ge=60.0)
    """Time for which an ended drone is reported."""
    console_lines: int = Field(200, ge=0, le=2000)
    """Lines of its console that are kept of a server that ends; 0: none."""
    cleanup_interval: Duration = 600.0
    """Interval of the cleanup of ports and volumes that deleted drones have left; 0: never."""
    deadline: PositiveDuration = 15.0
    """Longest time for one query to the cloud."""
    create_deadline: PositiveDuration = 60.0
    """Longest time for one server to be accepted. Nova may still accept it later."""
    parallel: int = Field(8, ge=1, le=64)
    """Calls to the cloud at a time."""

    @section_check
    def _each_host_once(self) -> Self:
        names = [name for host in self.hosts for name in host.names]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise mistake_at(
                "hosts", f"`hosts` names {twice[0]} more than once: its GPUs would be counted twice"
            )
        return self

    @section_check
    def _owner_on_hosts(self) -> Self:
        if self.owner is not None and not self.hosts:
            raise ValueError(
                "`hosts` is wanted with `owner`: without it nothing tells which drones are in the way"
            )
        return self

    def server(self, kind: str) -> OpenStackTypeConfig:
        """Return the options of servers of a drone type: its own, else the site's."""
        special = self.types[kind]
        options: dict[str, Any] = {name: getattr(self, name) for name in ServerOptions.model_fields}
        options |= {name: getattr(special, name) for name in special.model_fields_set}
        options["metadata"] = {**self.metadata, **special.metadata}
        return OpenStackTypeConfig.model_validate(options)

    def type_conflicts(self, types: Sequence[DroneType]) -> Iterator[OptionFinding]:
        """Yield what does not agree with the site's drone types: path in the site file, and message."""
        names = [kind.name for kind in types]
        shares = "a server has what its flavour calls GPUs, whole ones: write `gpus: 1`"
        yield from type_findings(types, self.types, shares)
        for kind in types:
            if kind.name not in self.types:
                message = f"drone type `{kind.name}` has no flavour: write `types: {{{kind.name}: {{flavor: NAME}}}}`"
                yield ("options", "types"), message
            elif not self.server(kind.name).image:
                yield (
                    ("options", "types", kind.name),
                    f"drone type `{kind.name}` has no image: write `image: NAME`",
                )
        for n, host in enumerate(self.hosts):
            for name in host.types:
                if name not in names:
                    message = f"there is no drone type `{name[:63]}`: {choices(name, names)}"
                    yield ("options", "hosts", n, "types"), message

    def host_warnings(self) -> Iterator[OptionFinding]:
        """Yield what would not work on this host: path below the options, and message."""
        from adapters.openstack import clouds

        yield from clouds.access_problems(self)
        hosted = {name for host in self.hosts for name in host.types or self.types}
        for name in self.types.keys() - hosted if hosted else ():
            yield (
                ("hosts",),
                f"drone type `{name}` is never started: no host has it. Name it in `types` of a host",
            )
        if self.owner is not None:
            yield from (
                (("owner", *path), message) for path, message in clouds.access_problems(self.owner)
            )
