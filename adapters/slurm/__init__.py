"""Drones as jobs of a Slurm cluster: by its command-line tools (here or over ssh), by slurmrestd, or by pyslurm."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adapters.slurm.site import SlurmSite

__all__ = ["SlurmSite"]


def __getattr__(name: str) -> Any:
    """Import the site on demand: the interpreter of pyslurm's worker may lack what the site needs."""
    if name == "SlurmSite":
        from adapters.slurm.site import SlurmSite

        return SlurmSite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
