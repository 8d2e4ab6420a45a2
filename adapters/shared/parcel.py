"""A drone's environment and files: checked, packed to go along with its request, or put on a login node."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from importlib import resources

from adapters.shared.commands.runner import Runner
from adapters.shared.drone_ids import is_drone_id
from provisioner import drone
from provisioner.config.models import mistake_at
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import Bootstrap, FaultKind, StartOrder

OURS = ".site"
"""Subdirectory of the drone's directory for the files of the site."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MAX_VALUE_BYTES = 100_000
_SENDABLE_FILE = re.compile(r"[A-Za-z0-9_@+=.-]{1,128}(/[A-Za-z0-9_@+=.-]{1,128}){0,8}")


class UnfitError(RejectedError):
    """An order that can never be carried out; the message says why."""

    kind = FaultKind.CONFIG


FINDINGS = frozenset(
    [
        "driver",
        "ecc",
        "remap-pending",
        "remap-failed",
        "throttle",
        "pcie",
        "vram",
        "cuda",
        "hung",
        "xid",
    ]
)
"""Findings of the drone's GPU checks (``docs/reference/drone.md``)."""
_SECONDS = "a whole number of seconds from 1"
_XIDS = "numbers of Xids with commas between them"
POLICY_VARIABLES = {
    "DRONE_XID_APPLICATION": (_XIDS, "13,31,43"),
    "DRONE_XID_FATAL": (_XIDS, "48,79,95"),
    "DRONE_XID_RESET": (f"{_XIDS}, or `other`", "other"),
    "DRONE_GPU_IGNORE": (
        f"findings with commas between them, of {', '.join(sorted(FINDINGS))}",
        "pcie,throttle",
    ),
    "DRONE_GPU_RESET_S": (_SECONDS, "1800"),
    "DRONE_GPU_FATAL_S": (_SECONDS, "86400"),
    "DRONE_GPU_PROBE_S": (_SECONDS, "45"),
    "DRONE_CHECK_S": (_SECONDS, "600"),
    "DRONE_KERNEL_LOG": ("an absolute path", "/var/log/gpu-messages.log"),
    "DRONE_SYS": ("an absolute path", "/sys"),
}
"""Variables of the drone's checks (``docs/reference/drone.md``), which a site's ``env`` may set: values and example."""


def check_environment(env: dict[str, str], *, reserved: re.Pattern[str]) -> dict[str, str]:
    """Validate the option ``env`` of a site: plain names, values on one line, no variable that the site sets."""
    for name, value in env.items():
        if not VARIABLE_NAME.fullmatch(name) or not value.isprintable():
            what = f"`{name[:40]}` is not a valid environment variable"
            raise mistake_at(name, f"{what}: it needs a plain name and a value on one line")
        if name in POLICY_VARIABLES:
            expected, example = POLICY_VARIABLES[name]
            if not _is_valid_policy(name, value):
                raise mistake_at(name, f'`{name}` must be {expected}: write `{name}: "{example}"`')
        elif near := get_close_matches(name.upper(), POLICY_VARIABLES, n=1, cutoff=0.85):
            raise mistake_at(name, f"unknown variable `{name}`: did you mean `{near[0]}`?")
        elif reserved.fullmatch(name):
            raise mistake_at(name, f"`{name}` is set by the site: remove it")
    return env


def _is_valid_policy(name: str, value: str) -> bool:
    words = set(re.split(r"[\s,]+", value.strip())) if value.strip() else set()
    if name.endswith("_S"):
        return re.fullmatch(r"0*[1-9][0-9]{0,8}", value) is not None
    if name == "DRONE_GPU_IGNORE":
        return words <= FINDINGS
    if name.startswith("DRONE_XID_"):
        known = {"other"} if name == "DRONE_XID_RESET" else set()
        return all(re.fullmatch(r"[0-9]{1,4}", word) for word in words - known)
    return value.startswith("/")


def validated(order: StartOrder, controller: str) -> Bootstrap:
    """Return the bootstrap of an order of this controller that can be sent along. Raises UnfitError."""
    if not is_drone_id(order.drone_id, controller):
        raise UnfitError("not a drone id of this controller")
    if order.bootstrap is None:
        raise UnfitError("the order has no admission: nothing to run")
    sendable(order.bootstrap)
    return order.bootstrap


def sendable(bootstrap: Bootstrap) -> None:
    """Check that a bootstrap can be sent along. Raises UnfitError."""
    for name in bootstrap.files:
        if not _SENDABLE_FILE.fullmatch(name) or set(name.split("/")) & {".", "..", OURS}:
            raise UnfitError(f"a drone cannot take a file along as {name[:60]!r}")
    for name, value in bootstrap.env.items():
        try:
            fits = (
                "\0" not in value
                and len(value.encode("utf-8", "surrogateescape")) < _MAX_VALUE_BYTES
            )
        except UnicodeEncodeError:
            fits = False
        if not fits or not VARIABLE_NAME.fullmatch(name):
            raise UnfitError(f"{name[:60]!r} cannot be an environment variable")


def packed(content: Mapping[str, bytes]) -> bytes:
    """Return the archive of a drone's directory.

    The last file in it (``.site/whole``) tells that it is complete: tar does not always report a
    truncated archive.
    """
    return drone.archive({**dict(sorted(content.items())), f"{OURS}/whole": b""})


def step(env: Mapping[str, str]) -> bytes:
    """Return the script that sets a drone's environment and becomes the drone."""
    return script(*drone.exports(env), f"exec sh {OURS}/script")


def script(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def files_function(packed_files: bytes) -> str:
    """Return a function of a shell script that writes an archive to its standard output."""
    encoded = base64.encodebytes(packed_files).decode()
    return f"files() {{\n    base64 -d <<'END_OF_FILES'\n{encoded}END_OF_FILES\n}}\n"


def scripts(package: str, name: str) -> str:
    """Return the shell functions that end tagged processes, and a script of a package after them."""
    tagged = resources.files(__package__).joinpath("tagged.sh").read_text()
    return tagged + resources.files(package).joinpath(name).read_text()


# -----------------------------------------------------------------------------------------------
# files on a login node

_PUT_FILE_NAME = re.compile(
    r"[A-Za-z0-9_@+=-][A-Za-z0-9._@+=-]*(/[A-Za-z0-9_@+=-][A-Za-z0-9._@+=-]*)*"
)
_PUT_DIRECTORY = re.compile(r"/?[A-Za-z0-9_.][A-Za-z0-9._+@=-]*(/[A-Za-z0-9_.][A-Za-z0-9._+@=-]*)*")
_MARK = "put."
"""A file of this name and the digest says that all of it is there."""
_PUT = f"""\
set -eu
umask 077
dir=$1 digest=$2
there() {{ [ -e "$dir/{_MARK}$digest" ]; }}
if there; then cat >/dev/null; exit 0; fi
mkdir -p -- "$(dirname -- "$dir")"
new=$(mktemp -d -- "$dir.new.XXXXXX")
old=$new.old
trap 'rm -rf -- "$new" "$old"' EXIT
tar -xof - -C "$new"
: >"$new/{_MARK}$digest"
# Nothing can be given the name of a directory that holds anything: of those who put the same, one does, all others see
# it. Another content goes away first.
for try in 1 2 3 4 5; do
    if mv -T -- "$new" "$dir" 2>/dev/null || there; then exit 0; fi
    mv -T -- "$dir" "$old" 2>/dev/null || :
    rm -rf -- "$old"
done
mv -T -- "$new" "$dir"
"""


async def put(
    runner: Runner,
    directory: str,
    files: Mapping[str, bytes],
    *,
    executable: Collection[str] = (),
    deadline_s: float,
) -> None:
    """Make ``directory`` (absolute, or below the account's home; mode 0700) hold these files and nothing else.

    Files have mode 0600, or 0700 if ``executable``. The directory is there whole or not at all, and
    a put may be tried again, after UnavailableError too. ValueError for a bad name.
    """
    for name in files:
        if not _PUT_FILE_NAME.fullmatch(name) or name.startswith(_MARK):
            raise ValueError(f"`{name[:60]}` is no name for a file that goes along")
    packed = drone.archive(dict(sorted(files.items())), executable)
    argv = ["sh", "-c", _PUT, "put", _checked(directory), hashlib.sha256(packed).hexdigest()]
    done = await runner.run(argv, stdin=packed, deadline_s=deadline_s)
    if done.code:
        raise UnavailableError(
            f"files for {directory} cannot be put there: {done.said}", FaultKind.CONFIG
        )


async def remove(runner: Runner, directory: str, *, deadline_s: float) -> None:
    """Remove the directory, if it exists. UnavailableError if that fails."""
    done = await runner.run(
        ["sh", "-c", 'exec rm -rf -- "$1"', "remove", _checked(directory)], deadline_s=deadline_s
    )
    if done.code:
        raise UnavailableError(f"{directory} cannot be removed: {done.said}")


def _checked(directory: str) -> str:
    if not _PUT_DIRECTORY.fullmatch(directory) or ".." in directory.split("/"):
        raise ValueError(f"`{directory[:60]}` is not a valid name of a directory")
    return directory
