"""The operator's command line. Most verbs only read the record; importing this package imports nothing else."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``provisioner`` script and return its exit code (:class:`provisioner.cli.options.Exit`)."""
    from provisioner.cli.__main__ import run_process

    return run_process(argv)
