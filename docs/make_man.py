"""Write man pages and completions of the command line below a root: ``make_man.py ROOT``, when packages are built."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from provisioner import __version__
from provisioner.cli.__main__ import VERBS, app
from provisioner.cli.options import EXIT_HELP
from provisioner.model import DroneState

ROOT: Any = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT, info_name="provisioner")
NAMES = {"--site": "sites", "--type": "types"}
"""Options whose values are names on record."""
ARGUMENTS = {
    "/drones/show": "drones",
    "/drones/drain": "drones",
    "/drones/kill": "drones",
    "/explain/drone": "drones",
    "/explain/job": "jobs",
    "/explain/class": "classes",
    "/sites/*": "sites",
}
"""Verbs whose arguments are names on record, in the order in which the shell looks."""
COMPLETION = """\
# Candidates for the word after "$@": verbs and options are written here, names come from the record.
_provisioner_candidates() {{
    local place="" last="" word
    set -- "$@" ""
    while [ $# -gt 1 ]; do
        word=$1
        case "$last" in -c|--config) local config=$word ;; esac
        case "$place/$word" in {places}) place=$place/$word ;; esac
        last=$word
        shift
    done
    case "$last" in
{values}
    esac
    case "$place" in
{names}
    esac
    case "$place" in
{words}
    esac
}}
_provisioner_names() {{ provisioner names "$1" ${{2:+--config "$2"}} 2>/dev/null; }}
"""
BASH = """\
_provisioner() {
    local word=${COMP_WORDS[COMP_CWORD]}
    mapfile -t COMPREPLY < <(compgen -W "$(_provisioner_candidates "${COMP_WORDS[@]:1:COMP_CWORD-1}")" -- "$word")
}
complete -o default -F _provisioner provisioner
"""
ZSH = """\
local -a found
found=(${=$(_provisioner_candidates "${(@)words[2,CURRENT-1]}")})
if (( $#found )); then compadd -a found; else _files; fi
"""


def commands() -> dict[str, Any]:
    """Return all verbs by their words, as ``/drones/drain``; the whole program is the empty text."""
    found: dict[str, Any] = {"": ROOT}

    def add(path: str, command: Any) -> None:
        found[path] = command
        for name, below in getattr(command, "commands", {}).items():
            add(f"{path}/{name}", below)

    for verb in VERBS:
        add(f"/{verb}", ROOT.get_command(CONTEXT, verb))
    return found


def completion(verbs: dict[str, Any]) -> str:
    """Return the function that both shells call."""
    options = [p for verb in verbs.values() for p in verb.params if p.param_type_name == "option"]
    values = {"--state": f"printf '%s\\n' {' '.join(DroneState)}"}
    values |= {name: f'_provisioner_names {kind} "$config"' for name, kind in NAMES.items()}
    for option in options:
        if not getattr(option, "is_flag", False):
            choices = re.search(r"<([\w|-]+)>", _record(option)[0])
            action = f"printf '%s\\n' {choices[1].replace('|', ' ')}" if choices else ":"
            for spelling in option.opts:
                values.setdefault(spelling, action)
    words = []
    for path in verbs:
        below = [other for other in verbs if other.rpartition("/")[0] == path and other != path]
        own = [
            max(each.opts, key=len)
            for each in verbs[path].params
            if each.param_type_name == "option"
        ]
        shown = [*(each.rpartition("/")[2] for each in below), *own, "--help"]
        words.append(f'    "{path}") printf "%s\\n" {" ".join(shown)} ;;')
    named = (
        f'    {path}) _provisioner_names {kind} "$config" ;;' for path, kind in ARGUMENTS.items()
    )
    return COMPLETION.format(
        places="|".join(path for path in verbs if path),
        values="\n".join(f"    {name}) {action}; return ;;" for name, action in values.items()),
        names="\n".join(named),
        words="\n".join(words),
    )


def pages(verbs: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of man pages: one of the program, and one of each verb with those below it."""
    for top in ("", *(path for path in verbs if path.count("/") == 1)):
        name = f"provisioner{top.replace('/', '-')}"
        lines = [f'.TH {name.upper()} 1 "" "gpu-drone-provisioner {__version__}"', ".SH NAME"]
        lines += [f"{name} \\- {_roff(_help(verbs[top])[0])}"]
        for path in verbs:
            if path == top or (top and path.startswith(f"{top}/")):
                lines += [".SH SYNOPSIS" if path == top else f'.SH "provisioner{_spaced(path)}"']
                lines += _verb(path, verbs[path])
        if not top:
            lines.append(".SH VERBS")
            for path in verbs:
                if path.count("/") == 1:
                    lines += [".TP", f".BR provisioner{path.replace('/', '-')} (1)"]
                    lines.append(_roff(_help(verbs[path])[0]))
        lines += [".SH EXIT STATUS", _roff(EXIT_HELP.removeprefix("Exit codes: "))]
        lines += [".SH FILES", ".TP", "/etc/provisioner/provisioner.yaml", "Configuration."]
        yield f"{name}.1", "\n".join(lines) + "\n"


def _verb(path: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = "".join(f" {_record(each)[0]}" for each in arguments)
    yield f".B provisioner{_spaced(path)}"
    yield _roff(f"[OPTIONS]{shown}")
    for paragraph in _help(command):
        if paragraph.startswith("\b"):
            yield from (".PP", ".nf", *(_roff(line) for line in paragraph.splitlines()[1:]), ".fi")
        else:
            yield from (".PP", _roff(" ".join(paragraph.split())))
    for each in command.params:
        title, meaning = _record(each)
        if title:
            yield from (".TP", f".B {_roff(title)}", _roff(" ".join(meaning.split())))


def _help(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _record(parameter: Any) -> tuple[str, str]:
    return parameter.get_help_record(CONTEXT) or ("", "")


def _spaced(path: str) -> str:
    return path.replace("/", " ")


def _roff(text: str) -> str:
    """Return a text as a line of roff, which gives a backslash, a hyphen and a dot at the start a meaning."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    share = Path(sys.argv[1]) / "usr/share"
    verbs = commands()
    both = completion(verbs)
    files = {
        "bash-completion/completions/provisioner": both + BASH,
        "zsh/site-functions/_provisioner": f"#compdef provisioner\n{both}{ZSH}",
        "zsh/vendor-completions/_provisioner": f"#compdef provisioner\n{both}{ZSH}",
        **{f"man/man1/{name}": text for name, text in pages(verbs)},
    }
    for name, text in files.items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text)
