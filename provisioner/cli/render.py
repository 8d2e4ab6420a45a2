"""``provisioner render``: what a site's administrator has to configure, made from the policy that we follow too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner.cli.exits import Exit, Failure
from provisioner.cli.options import ConfigPath, Where
from provisioner.cli.output import note
from provisioner.cli.where import config_path

if TYPE_CHECKING:
    from provisioner.config import Settings, SiteConfig

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def render() -> None:
    """Print configuration for the other side: what a site's administrator puts in place.

    It is made from the site's YAML, which the planner and the drones follow too, and `provisioner check --live` tells
    where the site does not do it yet.

    \b
    Examples:
      provisioner render blocking --site topas
      provisioner render blocking --site topas > 60-provisioner.conf
      provisioner render blocking --site topas --config /etc/provisioner/provisioner.yaml
    """


@app.command("blocking")
def blocking(
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="The site whose configuration is wanted.")],
    config: ConfigPath = None,
) -> None:
    """Print what makes a site keep CPUs, memory and disk for its free GPUs, and put its owner first.

    In the site's own language (for an HTCondor cluster, the configuration of its execution nodes). Nothing is asked of
    the site, and nothing is changed there.

    \b
    Examples:
      provisioner render blocking --site topas
      provisioner render blocking --site topas > 60-provisioner.conf
      provisioner render blocking --site topas | ssh root@topas-a100-1 'cat > /etc/condor/config.d/60-provisioner.conf'
    """
    from provisioner.config import load

    settings = load(config_path(Where(config=config)))
    text = _rendered(settings, _the_site(settings, site))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()
    note(f"site {site}: once it is in place, `provisioner check --live` tells where it does not hold")


def _the_site(settings: Settings, name: str) -> SiteConfig:
    from provisioner.config.messages import choices

    for spec in settings.sites:
        if spec.name == name:
            return spec
    raise Failure(f"no site {name[:80]!r} in {settings.path}: {choices(name, [s.name for s in settings.sites])}")


def _rendered(settings: Settings, spec: SiteConfig) -> str:
    from provisioner import loader
    from provisioner.interfaces import AdapterError, SupportsRenderBlocking

    if not spec.policy.blocking:
        raise Failure(
            f"{spec.path}: site {spec.name} has no blocking, so there is nothing to render",
            "say what each free GPU keeps, at the top level of that file:",
            "  blocking: [{cpus: 8, memory: 20 GiB, disk: 50 GiB}]",
            code=Exit.UNMET,
        )
    try:
        made = loader.site_adapter(spec.adapter)(spec.name, spec.options, spec.types, settings.controller)
        if not isinstance(made, SupportsRenderBlocking):
            raise Failure(
                f"adapter {spec.adapter} of site {spec.name} cannot render blocking: what its site needs for it is "
                "for its administrator to say; the planner and the drones keep the reserve all the same"
            )
        return made.render_blocking(spec.policy)
    except (AdapterError, loader.AdapterBrokenError, loader.AdapterUnknownError) as error:
        raise Failure(f"site {spec.name}: {error}") from error
