"""Which way to a cluster the operator has chosen."""

from __future__ import annotations

from adapters.slurm.records import SlurmClient
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind


def cluster_of(config: SlurmSiteConfig, name: str) -> SlurmClient:
    """The way to the Slurm of site ``name``, not entered yet.

    Raises:
        UnavailableError: (CONFIG) a Python package is missing that this way needs.
    """
    match config.transport:
        case "tools":
            from adapters.slurm.tools import SlurmToolsClient

            return SlurmToolsClient(config, name)
        case "rest":
            try:
                from adapters.slurm.rest import SlurmRestClient
            except ImportError as error:
                raise _missing(error, "aiohttp", "slurmrestd needs", "slurm-rest") from None
            return SlurmRestClient(config, name)
        case "native":
            from adapters.slurm.native import SlurmNativeClient

            return SlurmNativeClient(config, name)


def _missing(error: ImportError, package: str, who: str, extra: str) -> ImportError | UnavailableError:
    if error.name is None or error.name.partition(".")[0] != package:
        return error
    return UnavailableError(
        f"{who} the Python package {package}: pip install 'gpu-drone-provisioner[{extra}]'", FaultKind.CONFIG
    )
