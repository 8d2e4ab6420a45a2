"""Options of an HTCondor overlay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from adapters.htcondor.classads import Expression
from adapters.htcondor.overlay.affiliation import DEFAULT_VO, Affiliation
from adapters.htcondor.tokens import (
    DRONE_NEEDS,
    directory_credentials,
    idtoken_credential,
    token_warnings,
)
from provisioner.config.credentials import secret_file_credential
from provisioner.config.models import ConfigSection, section_check
from provisioner.config.units import Addresses, ConfigPath, PositiveDuration, Secret
from provisioner.interfaces import OptionFinding
from provisioner.model import Credential

CONTROLLER_NEEDS = ("READ", "DAEMON or ADMINISTRATOR")
"""To drain, one of the two is enough."""


_SHARED_TOKEN = (
    "`drone_token`: all drones share one token, and a job that gets it can pose as any drone until it expires. "
    "Set `drone_signing_key`, so that each drone gets a token of its own"
)


class HTCondorConfig(ConfigSection):
    """Options of ``overlay: {adapter: htcondor}``."""

    collector: Addresses = Field(examples=["pool.example.org:9618"])
    """Address of the pool's collector, `host:port` or `[IPv6]:port`, which drones reach too; several of a
    high-availability pair with commas."""
    trust_domain: str = Field(pattern=r"^[A-Za-z0-9._-]+$", examples=["pool.example.org"])
    """TRUST_DOMAIN of the pool: the issuer (`iss`) of its tokens."""
    schedds: tuple[str, ...] = Field((), examples=[["submit1.example.org"]])
    """Names of the schedds whose jobs count. Default: all that the collector lists."""
    token: Secret | None = None
    """The controller's token: READ at the collector and the schedds; at the collector DAEMON to drain by
    order ads and ADMINISTRATOR to drain by `condor_drain`."""
    token_directory: ConfigPath | None = None
    """Directory with tokens, instead of `token` or beside it; all are offered to the pool."""
    drone_token_mode: Literal["static", "signing-key"] = "signing-key"
    """`signing-key`: each drone gets a token of its own, signed with `drone_signing_key`; `static`: all drones
    share `drone_token` (also if that is the only one given)."""
    drone_token: Secret | None = None
    """Token that all drones share, where the controller may not have a signing key: READ, ADVERTISE_STARTD and
    ADVERTISE_MASTER, nothing more."""
    drone_signing_key: ConfigPath | None = None
    """Copy of a signing key of the pool (a file of SEC_PASSWORD_DIRECTORY). Its holder can be any identity of
    the pool: protect it as the collector's."""
    drone_signing_key_id: str = Field("POOL", pattern=r"^[A-Za-z0-9._-]+$")
    """Name of that key in the pool (`kid` of its tokens)."""
    drone_user: str = Field(
        "drone-{drone}", pattern=r"^[A-Za-z0-9._-]*(\{drone\}[A-Za-z0-9._-]*)?$", min_length=1
    )
    """User name in the tokens of `signing-key`; `{drone}` is the drone's id. With the default the pool allows
    `drone-*@<trust domain>`."""
    drone_token_margin: PositiveDuration = 3600.0
    """A token of `signing-key` lasts this long beyond the longest life of its drone: the site's `timeouts`, the
    walltime of the type, and the grace."""
    drone_token_lifetime: PositiveDuration = 7 * 86400.0
    """The same for a drone without a walltime, in place of walltime and margin."""
    deadline: PositiveDuration = 20.0
    """Longest time for one poll of the pool."""
    drain_deadline: PositiveDuration = 20.0
    """Longest time for one call of `condor_drain`."""
    constraint: Expression = Field("true", examples=['AcctGroup == "physics"'])
    """Only jobs for which this ClassAd expression is true count."""
    owner_attribute: str = Field("AcctGroup", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Job attribute that names the accounting group a job belongs to; its user is its `Owner`."""
    vo: Expression | None = Field(None, examples=["x509UserProxyVOName"])
    """Expression for the virtual organisation of a job. Default: that of its proxy (`x509UserProxyVOName`,
    `x509UserProxyFirstFQAN`), else the issuer of its token at a compute element (`orig_AuthTokenIssuer`), else
    its accounting group."""
    vo_member: Expression | None = Field(None, examples=["x509UserProxyFirstFQAN"])
    """Expression for the member of the VO, recorded with each job class and run: a FQAN, or issuer and subject
    of a token. Default: none, as it may be personal data."""
    negotiation_period: PositiveDuration = 300.0
    """Age from which an idle job counts as seen by the negotiator, where the pool does not advertise its
    accounting (NEGOTIATOR_UPDATE_INTERVAL)."""
    slot_weight: Literal["cpus", "gpus"] = "cpus"
    """Unit of the pool's group quotas, by its SLOT_WEIGHT: `cpus` (HTCondor's default) or `gpus`."""
    collector_memory: PositiveDuration = 900.0
    """Time for which slots keep their state after a restart of the collector, and the jobs of a silent schedd
    count. Longer than the pool's UPDATE_INTERVAL."""
    drain_tool: str = Field("condor_drain", min_length=1)
    """The tool that drains; found on PATH."""
    client_config: str = ""
    """Lines to add to the controller's own HTCondor configuration."""
    condor_prefix: str = ""
    """Directory of HTCondor on the worker nodes, above `usr/sbin/condor_master`; `{arch}` is `uname -m`.
    Default: found on PATH."""
    drone_config: str = ""
    """Lines to add to every drone's HTCondor configuration."""

    accounting: bool = False
    """Jobs are accounted by what they keep of their drones: `check --live` reports schedds without the
    lines of `provisioner render accounting`."""

    @property
    def vo_expression(self) -> str:
        return self.vo or DEFAULT_VO.format(group=self.owner_attribute)

    @property
    def affiliation(self) -> Affiliation:
        return Affiliation(self.owner_attribute, self.vo_expression, self.vo_member or "")

    @property
    def drone_identities(self) -> str:
        """Identity of each drone, with ``{drone}`` for its id; empty if a drone's identity does not have it."""
        own = self.drone_token_mode == "signing-key" and "{drone}" in self.drone_user
        return f"{self.drone_user}@{self.trust_domain}" if own else ""

    def credentials(self) -> Iterator[Credential]:
        """Yield our tokens and those of the drones, or the key that signs them."""
        if self.token is not None:
            yield idtoken_credential("token", self.token, self.trust_domain)
        elif self.token_directory is not None:
            yield from directory_credentials("token_directory", self.token_directory)
        if self.drone_token is not None and self.drone_token_mode == "static":
            yield idtoken_credential(
                "drone_token", self.drone_token, self.trust_domain, DRONE_NEEDS
            )
        if self.drone_signing_key is not None and self.drone_token_mode == "signing-key":
            yield secret_file_credential("drone_signing_key", self.drone_signing_key)

    def host_warnings(self) -> Iterator[OptionFinding]:
        if self.token is not None:
            yield from (
                (("token",), message)
                for message in token_warnings("token", self.token, CONTROLLER_NEEDS)
            )
        if self.drone_token is not None:
            found = token_warnings("drone_token", self.drone_token, (), DRONE_NEEDS)
            yield from ((("drone_token",), message) for message in found)
        if self.drone_token is not None and self.drone_token_mode == "static":
            yield ("drone_token",), _SHARED_TOKEN
        if self.drone_signing_key is not None:
            found = token_warnings("drone_signing_key", Secret(file=self.drone_signing_key), ())
            yield from ((("drone_signing_key",), message) for message in found)

    @model_validator(mode="before")
    @classmethod
    def _mode(cls, given: Any) -> Any:
        if (
            isinstance(given, dict)
            and given.get("drone_token")
            and not given.get("drone_signing_key")
        ):
            return {"drone_token_mode": "static", **given}
        return given

    @section_check
    def _some_token(self) -> Self:
        if self.token is None and self.token_directory is None:
            raise ValueError("`token` or `token_directory` is wanted: write `token: {file: path}`")
        if self.drone_token_mode == "static" and self.drone_token is None:
            raise ValueError(
                "`drone_token` is wanted with `drone_token_mode: static`: write `drone_token: {file: path}`"
            )
        if self.drone_token_mode == "signing-key" and self.drone_signing_key is None:
            raise ValueError(
                "`drone_signing_key` is wanted, a file with a signing key of the pool: write its path"
            )
        return self
