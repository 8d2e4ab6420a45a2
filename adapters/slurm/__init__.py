"""Drones as jobs of a Slurm cluster: by its command-line tools (here or over ssh), by slurmrestd, or by pyslurm."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapters.slurm.site import SlurmSite

__all__ = ["SlurmSite"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: pyslurm's child may be in an interpreter that has nothing of what the site needs."""
    if name == "SlurmSite":
        from adapters.slurm.site import SlurmSite

        return SlurmSite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
