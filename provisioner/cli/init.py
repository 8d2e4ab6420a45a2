"""``provisioner init``: the files of a first controller and site, from what this host knows and the operator says."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Annotated, NamedTuple

import typer

from provisioner.answers.errors import Exit, UnmetError, UsageError, parsed, unknown
from provisioner.cli import discovery, options as opt, output as out
from provisioner.cli.discovery import Values

TYPE_MARK = "#*"
"""Begin of a line of a template that is repeated for each drone type."""
_QUESTION = re.compile(r"#\?(\*?) (\w+): (.+?)(?: \| (.*))?")


class SiteKind(StrEnum):
    """Kinds of sites, each with a template of its file."""

    LOCAL = "local"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    OPENSTACK = "openstack"
    HTCONDOR = "htcondor"


class InitQuestion(NamedTuple):
    """Question about a value, at the start of a template."""

    of_type: str
    """Not empty: it is about each drone type."""
    name: str
    text: str
    default: str | None


def _template(name: str) -> tuple[list[InitQuestion], list[str]]:
    """Return the questions of a template, and its lines."""
    path = files("provisioner.cli") / "init_files" / f"{name}.yaml"
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [_QUESTION.fullmatch(line) for line in lines]
    questions = [InitQuestion(*each.groups()) for each in found if each is not None]
    return questions, lines[len(questions) :]


def _filled(lines: Sequence[str], values: Values, types: Sequence[Values]) -> str:
    """Return a file. A line with a value that is not known is left out."""
    written = []
    for repeated, block in groupby(lines, lambda line: line.startswith(TYPE_MARK)):
        templates = [Template(line.removeprefix(TYPE_MARK)) for line in block]
        for each in types if repeated else [values]:
            written += [
                line.substitute(each)
                for line in templates
                if all(map(each.get, line.get_identifiers()))
            ]
    return "".join(f"{line}\n" for line in written)


def _answered(questions: Sequence[InitQuestion], values: Values) -> Values:
    """Return the values and the answers to questions about others. Raises :class:`UsageError`."""
    for each in questions:
        values = {**discovery.implied(values), **values}
        if each.name in values:
            continue
        answer = Template(each.default or "").substitute(values)
        if sys.stdin.isatty():
            answer = typer.prompt(each.text, default=answer or None, err=True)
            if each.text.startswith("File") and Path(answer).exists():
                answer = str(Path(answer).absolute())
        if not answer:
            flag = (
                f"--{each.name} "
                if each.name in ("pool", "token", "key")
                else f"--set {each.name}="
            )
            raise UsageError(f"missing value: {each.text}. Write {flag}VALUE")
        values = {**values, each.name: answer}
    return values


def made_files(kind: SiteKind, given: Values) -> Mapping[str, str]:
    """Return the files by name: what ``given`` does not tell is read from this host, or asked."""
    (general, lines), (of_site, site_lines) = _template("provisioner"), _template(kind)
    names = {each.name for each in (*general, *of_site)}
    names.update(Template("\n".join([*lines, *site_lines])).get_identifiers())
    for name in given:
        if name not in names:
            raise unknown("value", name, sorted(names), code=Exit.USAGE)
    host = re.sub(r"[^a-z0-9]", "", socket.gethostname().partition(".")[0].lower())
    values: Values = {
        "host": host[:12] or "here",
        "site": str(kind),
        **discovery.of_host(),
        **given,
    }
    general += [each for each in of_site if not each.of_type]
    values = _answered(general, values)
    of_type = [each for each in of_site if each.of_type]
    found = discovery.drone_types(kind, values)
    types = [_answered(of_type, {**each, **given}) for each in found]
    return {
        "provisioner.yaml": _filled(lines, values, ()),
        f"{values['site']}.yaml": _filled(site_lines, values, types),
    }


def init(
    kind: Annotated[
        SiteKind | None, opt.option("KIND", f"Kind of the site: {', '.join(SiteKind)}.")
    ] = None,
    pool: Annotated[str, opt.option("HOST:PORT", "Collector of the pool.")] = "",
    token: Annotated[str, opt.option("FILE", "Token of the controller.")] = "",
    key: Annotated[str, opt.option("FILE", "Key that signs the tokens of drones.")] = "",
    values: Annotated[
        list[str] | None, opt.option("NAME=VALUE", "Set any other value; repeatable.", "--set")
    ] = None,
    to: Annotated[Path, opt.option("DIRECTORY", "Directory for the files.")] = Path("."),
    print_: Annotated[
        bool, opt.switch("Print the files instead of writing them.", "--print")
    ] = False,
) -> None:
    """Write a first configuration: the file of a controller and the file of one site.

    Values come from the options and from this host (HTCondor's configuration, nvidia-smi, sinfo, kubeconfig and
    kubectl, clouds.yaml). On a terminal it asks for missing ones; otherwise they are errors that name the option. It
    overwrites no file. Exit 3 if `provisioner check` finds a mistake in the new files.

    \b
    Examples:
      provisioner init --pool cm.example.org:9618 --token controller.token --key drones.key
      provisioner init --kind kubernetes --set image=registry.example.org/gpu-drone:25 --to /etc/provisioner
    """
    from provisioner import config
    from provisioner.cli.check import write_files

    paths = {"token": token and Path(token).absolute(), "key": key and Path(key).absolute()}
    given = dict(each.partition("=")[::2] for each in values or ())
    given |= {name: str(value) for name, value in {"pool": pool, **paths}.items() if value}
    if kind is None:
        asked = InitQuestion("", "kind", f"Kind of the site ({', '.join(SiteKind)})", "local")
        kind = parsed(SiteKind, "--kind", _answered([asked], {})["kind"])
    made = made_files(kind, given)
    if print_:
        print("\n".join(f"# {name}\n{text}" for name, text in made.items()))
        return
    write_files(to, made)
    controller = to / "provisioner.yaml"
    if problems := config.check(controller).problems:
        raise UnmetError(*map(str, problems))
    out.note(*(f"written: {to / name}" for name in made))
    out.note(f"next: provisioner check --live {controller}")
