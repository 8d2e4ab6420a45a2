"""The operator's command line. It reads the record only; importing this package imports nothing else."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``provisioner`` script. Returns the exit code (:class:`provisioner.cli.exits.Exit`)."""
    from provisioner.cli.process import run_process

    return run_process(argv)
