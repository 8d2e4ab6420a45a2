"""Scripts that run on a worker node: POSIX shell, and Python where the node has it; no dependency of ours.

Handed out as bytes, because sites ship it.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Mapping
from importlib import resources
from itertools import pairwise

from provisioner.model import NVIDIA, WHOLE_GPU, StartOrder

GPU_CHECK_EXITS = (71, 72)
"""Exit codes of a drone whose check of its GPUs failed or hung."""
_INCLUDE = re.compile(rb"^.*# @include (?P<name>[a-z_]+\.(sh|py))$", re.MULTILINE)
_HERE_DOCUMENT = re.compile(rb"<<-?\s*['\"]?(?P<end>[A-Za-z_]\w*)['\"]?")
_INDENT = re.compile(rb"^(?: {4})+")
_SHELL_STRING = re.compile(rb"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"")
"""A string on one line, or an escaped character."""
_SHELL_REMARK = re.compile(rb" {2,}# [^'\"\n]*$")
_MEANS_SOMETHING = re.compile(rb"#!|# limit: \d+$")
"""Comments that are read: an interpreter, the time limit of a check."""


def script(name: str) -> bytes:
    """Return a drone's script, complete in one file: ``script("condor_drone.sh")``.

    A line that ends in ``# @include NAME`` is replaced by that file. Unreplaced it is a command
    that fails, so a script taken from the source tree as it is checks no GPU and therefore accepts
    no job. Blank lines, comments and docstrings are left out: some sites limit the size of what
    they ship.
    """
    text = resources.files(__package__).joinpath(name).read_bytes()
    text = _without_python_comments(text) if name.endswith(".py") else _without_shell_comments(text)
    return _INCLUDE.sub(lambda found: script(found["name"].decode()).rstrip(b"\n"), text)


def _without_shell_comments(text: bytes) -> bytes:
    """Return a shell script without blank lines, comments and wide indents, except in strings of several lines."""
    kept, end = [], b""
    quote = b""  # of a string that an earlier line has begun
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        if end or _MEANS_SOMETHING.match(bare):
            kept.append(line)
            end = b"" if bare == end else end
            continue
        if not bare or bare.startswith(b"#"):
            continue
        kept.append(_SHELL_REMARK.sub(b"", line if quote else _INDENT.sub(_one_space, line)))
        if quote and quote not in line:
            continue
        rest = line.partition(quote)[2] if quote else line
        begun = re.search(rb"['\"]", _SHELL_STRING.sub(b"", rest))
        quote = begun[0] if begun else b""
        if opened := _HERE_DOCUMENT.search(line):
            end = opened["end"]
    return b"".join(kept)


def _one_space(indent: re.Match[bytes]) -> bytes:
    """Return an indent with one space a level."""
    return indent[0][::4]


def _without_python_comments(text: bytes) -> bytes:
    """Return a Python program without blank lines, comments, docstrings and wide indents; other strings stay."""
    lines = text.splitlines(keepends=True)
    before = tokenize.NEWLINE
    for token, after in pairwise(tokenize.tokenize(io.BytesIO(text).readline)):
        alone = token.line.strip().startswith("#") or not token.line.strip()
        if token.type == tokenize.NL and alone:
            lines[token.start[0] - 1] = b""
        if token.type == tokenize.COMMENT and not alone:
            lines[token.start[0] - 1] = token.line[: token.start[1]].rstrip().encode() + b"\n"
        begins = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type == tokenize.STRING and begins and after.type == tokenize.NEWLINE:
            first = token.start[0] - 1
            last = token.end[0]
            lines[first:last] = [b" " * token.start[1] + b'""\n', *[b""] * (last - first - 1)]
        if token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENCODING):
            before = token.type
    return _narrow(b"".join(lines))


def _narrow(program: bytes) -> bytes:
    """Return a Python program that is indented by one space a level, outside strings."""
    within = set[int]()
    for token in tokenize.tokenize(io.BytesIO(program).readline):
        within.update(range(token.start[0] + 1, token.end[0] + 1))
    narrowed = [
        line if number in within else _INDENT.sub(_one_space, line)
        for number, line in enumerate(program.splitlines(keepends=True), 1)
    ]
    return b"".join(narrowed)


def environment(order: StartOrder) -> Mapping[str, str]:
    """Return the environment that every drone gets, wherever it runs (``docs/reference/drone.md``).

    Its site adds ``DRONE_DIR`` and the GPUs of the drone; the overlay adds its part
    (:class:`provisioner.model.Bootstrap`).
    """
    kind = order.type
    published = [f"{name}={expression}" for name, expression in kind.published.items()]
    return {
        "DRONE_ID": order.drone_id,
        "DRONE_SITE": kind.site,
        "DRONE_TYPE": kind.name,
        "DRONE_GPUS": str(-(-kind.gpu_milli // WHOLE_GPU)),
        "DRONE_GPU_MILLI": str(kind.gpu_milli),
        "DRONE_CPUS": str(kind.cpus),
        "DRONE_MEMORY_MIB": str(kind.memory_mib),
        "DRONE_DISK_MIB": str(kind.disk_mib),
        "DRONE_VRAM_MIB": str(kind.vram_mib),
        "DRONE_SHARING": kind.sharing.value,
        "DRONE_SHARES": str(kind.shares),
        **({"DRONE_VRAM_POOL": "1"} if kind.vram_pool else {}),
        **({"DRONE_VENDOR": kind.vendor} if kind.vendor != NVIDIA else {}),
        **({"DRONE_TARGET": kind.gpu_target} if kind.gpu_target else {}),
        **({"DRONE_DCGM_JOBS": kind.dcgm_jobs} if kind.dcgm_jobs else {}),
        **({"DRONE_AD": " ".join(published)} if published else {}),
        "DRONE_KEPT_CPUS": str(kind.kept_cpus),
        "DRONE_KEPT_MEMORY_MIB": str(kind.kept_memory_mib),
        "DRONE_KEPT_DISK_MIB": str(kind.kept_disk_mib),
        "DRONE_JOB_FILTER": str(order.job_filter),
        "DRONE_IDLE_S": str(round(order.idle_timeout_s)),
        "DRONE_GRACE_S": str(round(order.grace_s)),
        "DRONE_WALLTIME_S": str(int(kind.walltime_s)),
    }
