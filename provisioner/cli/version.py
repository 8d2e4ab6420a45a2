"""``provisioner version``."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def version() -> None:
    """Print the version.

    \b
    Examples:
      provisioner version
      test "$(provisioner version)" = 0.1.0 && echo the first one
      provisioner version | tee -a bug-report.txt
    """
    from provisioner import __version__

    print(__version__)
