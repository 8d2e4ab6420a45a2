"""What the operator may write about the embedded queue under ``overlay.options``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from adapters.embedded.table import LONGEST_LEASE_S
from provisioner.config.units import ConfigPath, Duration, PositiveDuration


class Config(BaseModel):
    """Options of the ``embedded`` overlay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: ConfigPath = Field(
        description="The queue: a SQLite file on a local disk of this host. Made if missing.", examples=["var/queue.db"]
    )
    negotiation: Duration = Field(
        default=0.0,
        description="Jobs are matched at multiples of this span only, as in a pool that negotiates; 0s: at once.",
    )
    lease: PositiveDuration = Field(
        default=30.0,
        description="How long a job belongs to a drone that gives no sign of life; then it waits again. At most 10min.",
    )
    poll: PositiveDuration = Field(default=0.5, description="How often a drone with room looks for jobs.")
    max_lost: int = Field(
        default=10, ge=1, description="A job whose drone was lost under it this often is held instead of run again."
    )
    keep: Duration = Field(default=30 * 86400.0, description="How long finished jobs stay in the queue file.")
    check: tuple[str, ...] = Field(
        default=(),
        description="Command with arguments that a drone runs before it takes jobs; another status than 0 ends it.",
        examples=[["nvidia-smi", "-L"]],
    )
    check_deadline: PositiveDuration = Field(default=60.0, description="Longest time for `check`; then it has hung.")

    @field_validator("lease")
    @classmethod
    def _not_too_long(cls, lease_s: float) -> float:
        if not 1.0 <= lease_s <= LONGEST_LEASE_S:
            raise ValueError(f"a lease is between 1s and {LONGEST_LEASE_S / 60:g}min")
        return lease_s
