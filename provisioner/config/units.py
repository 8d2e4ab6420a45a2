"""Values with units as operators write them, such as ``20 GiB``, ``2h30m`` and ``{file: token}``.

Annotated types for pydantic models of configuration, an adapter's ``Config`` among them. Defaults are given in the
internal unit: ``idle: Duration = 600.0``, ``memory: Size = 4096``. Relative paths (:data:`ConfigPath`, :class:`Secret`)
are taken from the directory that the validation context names as ``root``, which the loader sets.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from provisioner.model import WHOLE_GPU

_NUMBER = r"\d+(?:\.\d+)?"

# ---------------------------------------------------------------------------------------------------------------- sizes

_MIB = 1024**2
_SIZE_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": _MIB,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)")
_SIZE_LIMIT_MIB = 1024**3
SIZE_PATTERN = rf"^{_NUMBER}\s*({'|'.join(_SIZE_BYTES)})$"


def parse_size(value: object) -> int:
    """Return ``20 GB``, ``20 GiB`` or ``512 MiB`` in MiB, rounded up. The ValueError tells what to write."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"a size needs a unit: write `{_with_unit(max(value, 0))}`")
    if not isinstance(value, str):
        raise ValueError("expected a size: write `20 GiB` or `512 MiB`")
    parts = _SIZE.fullmatch(value.strip())
    if not parts:
        raise ValueError(f"`{_short(value)}` is not a size: write `20 GiB` or `512 MiB`")
    number, unit = parts.groups()
    if unit not in _SIZE_BYTES:
        raise ValueError(_wrong_size_unit(number, unit))
    size_mib = math.ceil(Decimal(number) * _SIZE_BYTES[unit] / _MIB)
    if size_mib > _SIZE_LIMIT_MIB:
        raise ValueError(f"`{_short(value)}` is more than 1024 TiB: is the unit right?")
    return size_mib


def _with_unit(number: float) -> str:
    """Return the probable size: nobody writes thousands of GiB, and HTCondor and Slurm use MiB."""
    return f"{number:.0f} MiB" if 1024 <= number <= _SIZE_LIMIT_MIB else f"{number:g} GiB"


def _wrong_size_unit(number: str, unit: str) -> str:
    same = next((known for known in _SIZE_BYTES if known.lower() == unit.lower()), None)
    if same is None and len(unit) == 1 and unit.upper() in "KMGT":
        prefix = unit.upper()
        binary, decimal = f"{prefix}iB", "kB" if prefix == "K" else f"{prefix}B"
        return f"`{unit}` can mean two things: write `{number} {binary}` (1024s) or `{number} {decimal}` (1000s)"
    return f"`{unit}` is not a unit of size: write `{number} {same or 'GiB'}`; known are {', '.join(_SIZE_BYTES)}"


def format_size(size_mib: int) -> str:
    """Return the shortest exact text that :func:`parse_size` reads back as ``size_mib``."""
    for unit, mib in (("TiB", 1024**2), ("GiB", 1024)):
        if size_mib and size_mib % mib == 0:
            return f"{size_mib // mib} {unit}"
    return f"{size_mib} MiB"


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN, "examples": ["20 GiB"]}),
]
"""An amount of memory or disk: an int in MiB, rounded up."""

# ------------------------------------------------------------------------------------------------------------ durations

_MS = Decimal("0.001")
_SECONDS: dict[str, int | Decimal] = {"w": 604800, "d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1, "ms": _MS}
_ORDER = {"w": 0, "d": 1, "h": 2, "min": 3, "m": 3, "s": 4, "ms": 5}
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ]+)\s*")
_LONGEST_S = 3660 * 86400
_OTHER_WORDS = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "mins": "min",
    "minute": "min",
    "minutes": "min",
    "hr": "h",
    "hrs": "h",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    "week": "w",
    "weeks": "w",
}
DURATION_PATTERN = (
    rf"^\s*(?=\d)({_NUMBER}\s*w\s*)?({_NUMBER}\s*d\s*)?({_NUMBER}\s*h\s*)?({_NUMBER}\s*(min|m)\s*)?"
    rf"({_NUMBER}\s*s\s*)?({_NUMBER}\s*ms)?\s*$"
)


def parse_duration(value: object) -> float:
    """Return ``2h30m``, ``10min``, ``90 s`` or ``1d`` in seconds. The ValueError tells what to write."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"a duration needs a unit: write `{max(value, 0):g}s` or `{max(value, 0):g}min`")
    if not isinstance(value, str):
        raise ValueError("expected a duration: write `30s`, `10min` or `2h30m`")
    total, last, at = Decimal(0), -1, 0
    while at < len(value):
        part = _PART.match(value, at)
        if part is None:
            break
        number, unit = part.groups()
        if unit not in _SECONDS:
            raise ValueError(_wrong_duration_unit(number, unit))
        if _ORDER[unit] <= last:
            raise ValueError(f"`{_short(value)}`: write each unit once, the largest first, as in `2h30m`")
        last = _ORDER[unit]
        total += Decimal(number) * _SECONDS[unit]
        at = part.end()
    if at < len(value) or last < 0:
        raise ValueError(f"`{_short(value)}` is not a duration: write `30s`, `10min` or `2h30m`")
    if total > _LONGEST_S:
        raise ValueError(f"`{_short(value)}` is more than ten years: is the unit right?")
    return float(total)


def _wrong_duration_unit(number: str, unit: str) -> str:
    known = _OTHER_WORDS.get(unit.lower()) or next((u for u in ("d", "h", "min", "s") if u == unit.lower()), None)
    return f"`{unit}` is not a unit of time: write `{number}{known or 'min'}`; known are w, d, h, min, s, ms"


def format_duration(seconds: float) -> str:
    """Return a text that :func:`parse_duration` reads back as ``seconds`` (to the millisecond)."""
    milliseconds = round(seconds * 1000)
    if milliseconds == 0:
        return "0s"
    parts: list[str] = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["2h30m"]}),
]
"""A time span: a float in seconds, 0 allowed."""


def _above_zero(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0s")
    return seconds


PositiveDuration = Annotated[
    float,
    BeforeValidator(parse_duration),
    AfterValidator(_above_zero),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["2h30m"]}),
]
"""A :data:`Duration` above zero."""

# ----------------------------------------------------------------------------------------------------------------- GPUs

_GPUS_LIMIT = 1_000_000


def parse_gpus(value: object) -> int:
    """Return a number of GPUs, in steps of 0.001, in milli-GPU; decimal, so without rounding errors."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a number of GPUs: write `1` or `0.5`")
    try:
        milli = Decimal(repr(value)) * WHOLE_GPU
    except InvalidOperation:  # nan and inf have no place on the scale
        milli = Decimal("nan")
    if not milli.is_finite():
        raise ValueError("expected a number of GPUs: write `1` or `0.5`")
    if milli < 0:
        raise ValueError(f"GPUs cannot be negative: write `{abs(value):g}`")
    if milli > _GPUS_LIMIT * WHOLE_GPU:
        raise ValueError(f"`{_short(str(value))}` is more than {_GPUS_LIMIT} GPUs")
    if milli != milli.to_integral_value():
        raise ValueError(f"GPUs are in steps of 0.001: write `{round(value, 3):g}`")
    return int(milli)


def format_gpus(gpu_milli: int) -> str:
    """Return ``1`` for 1000 and ``0.5`` for 500."""
    whole, rest = divmod(gpu_milli, WHOLE_GPU)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


Gpus = Annotated[
    int,
    BeforeValidator(parse_gpus),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": _GPUS_LIMIT, "examples": [1, 0.5]}),
]
"""A number of GPUs, fractions in steps of 0.001: an int in milli-GPU."""

_CAPABILITY = re.compile(r"(\d{1,2})(?:\.(\d))?")


def parse_capability(value: object) -> int:
    """Return CUDA compute capability ``8.0`` times ten."""
    text = value if isinstance(value, str) else "" if isinstance(value, bool) or value is None else repr(value)
    parts = _CAPABILITY.fullmatch(text)
    if not parts or not 1 <= int(parts[1]) <= 30:
        raise ValueError("expected a CUDA compute capability such as `8.0` (A100), `8.6` or `9.0` (H100)")
    return int(parts[1]) * 10 + int(parts[2] or 0)


Capability = Annotated[
    int,
    BeforeValidator(parse_capability),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 1, "exclusiveMaximum": 31},
                {"type": "string", "pattern": r"^\d{1,2}(\.\d)?$"},
            ],
            "examples": [8.0],
        }
    ),
]
"""A CUDA compute capability: an int, times ten: 8.0 is 80."""

_CUDA = re.compile(r"(\d{1,2})\.(\d{1,2})")


def parse_cuda_version(value: object) -> int:
    """Return CUDA version ``"12.4"`` in HTCondor's form, 12040.

    A number without quotes is refused: YAML would read 12.10 as 12.1.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = repr(value) if isinstance(value, float) else f"{value}.0"
        raise ValueError(f'a version needs quotes: write `"{text}"`')
    parts = _CUDA.fullmatch(value) if isinstance(value, str) else None
    if not parts or int(parts[1]) < 1:
        raise ValueError('expected the newest CUDA version that the driver supports: write `"12.4"`')
    return int(parts[1]) * 1000 + int(parts[2]) * 10


CudaVersion = Annotated[
    int,
    BeforeValidator(parse_cuda_version),
    WithJsonSchema({"type": "string", "pattern": r"^\d{1,2}\.\d{1,2}$", "examples": ["12.4"]}),
]
"""A CUDA version in quotes: an int in HTCondor's form: 12.4 is 12040."""

# ---------------------------------------------------------------------------------------------------------------- names

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def parse_name(value: object) -> str:
    """Return a DNS label in lower case. The ValueError proposes one."""
    if not isinstance(value, str):
        raise ValueError("expected a name: lower-case letters, digits and `-`")
    if not re.fullmatch(NAME_PATTERN[1:-1], value):
        better = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:63].strip("-")
        raise ValueError(
            f"`{_short(value)}` is not a name (lower-case letters, digits, `-` inside, at most 63): "
            f"write `{better or 'a1'}`"
        )
    return value


Name = Annotated[str, BeforeValidator(parse_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
"""A name: lower-case letters, digits and ``-``, a DNS label."""

# ------------------------------------------------------------------------------------------------------------ addresses

_HOST = r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])"
_ONE_ADDRESS = rf"{_HOST}:\d{{1,5}}(\?sock=[A-Za-z0-9._-]{{1,100}})?"
ADDRESSES_PATTERN = rf"^{_ONE_ADDRESS}(\s*,\s*{_ONE_ADDRESS})*$"


def parse_addresses(value: object) -> str:
    """Return addresses of daemons that stand in for each other, separated by commas without blanks.

    Each is ``host:port``, ``[IPv6]:port``, or either with ``?sock=NAME`` for a daemon behind a shared port. The
    ValueError tells what is missing.
    """
    if not isinstance(value, str):
        raise ValueError("expected an address: write `host.example.org:9618`")
    return ",".join(_address(each.strip()) for each in value.split(","))


def _address(text: str) -> str:
    if re.fullmatch(_HOST, text):
        raise ValueError(f"`{_short(text)}` has no port: write `{_short(text)}:9618`, `host:port`")
    parts = re.fullmatch(_ONE_ADDRESS, text)
    if not parts or not _is_host(parts[1]):
        raise ValueError(
            f"`{_short(text)}` is not an address: write `host.example.org:9618`, `host:port`, or `[2001:db8::1]:9618`"
        )
    if not 1 <= int(text.partition("?")[0].rpartition(":")[2]) <= 65535:
        raise ValueError(f"`{_short(text)}`: a port is a number from 1 to 65535")
    return text


def _is_host(host: str) -> bool:
    if not host.startswith("["):
        return True
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


Addresses = Annotated[
    str, BeforeValidator(parse_addresses), WithJsonSchema({"type": "string", "pattern": ADDRESSES_PATTERN})
]
"""``host:port``, or several, separated by commas."""

# ------------------------------------------------------------------------------------------------------ paths, secrets


def parse_path(value: object, info: ValidationInfo) -> str:
    """Return an absolute path; a relative one is taken from ``root`` of the validation context."""
    text = str(value) if isinstance(value, str | Path) else ""
    if not text.strip() or "\0" in text:
        raise ValueError("expected a path: write `var/drones` (relative to this file) or `/var/lib/drones`")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"`{_short(text)}`: no such user") from None
    root = info.context.get("root") if isinstance(info.context, dict) else None
    return os.path.normpath(root / path) if isinstance(root, Path) else str(path)


ConfigPath = Annotated[Path, BeforeValidator(parse_path), WithJsonSchema({"type": "string", "minLength": 1})]
"""A path; a relative one is taken from the directory of the file that contains it. It need not exist."""


class SecretUnreadableError(Exception):
    """A secret that cannot be read now; the message never contains the secret."""


class Secret(BaseModel):
    """A reference to a secret, ``{file: path}`` or ``{env: NAME}``; the secret itself is read when needed."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"oneOf": [{"required": ["file"]}, {"required": ["env"]}]},
    )

    file: ConfigPath | None = Field(
        default=None, description="File that contains the secret; white space around it is removed.", examples=["token"]
    )
    env: str | None = Field(
        default=None,
        min_length=1,
        description="Environment variable of the controller that contains the secret.",
        examples=["POOL_TOKEN"],
    )

    @model_validator(mode="before")
    @classmethod
    def _never_literal(cls, value: Any) -> Any:
        if not isinstance(value, dict | cls):
            raise ValueError("a secret must not be in the configuration: write `{file: path}` or `{env: NAME}`")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("exactly one of `file` and `env` is needed: write `{file: path}` or `{env: NAME}`")
        return self

    def read(self) -> str:
        """Return the current secret, read at each call so that it can be rotated.

        Raises:
            SecretUnreadableError: no such file or variable, not readable, not text, or empty.
        """
        secret = self._read_file(self.file) if self.file is not None else os.environ.get(self.env or "", "").strip()
        if not secret:
            raise SecretUnreadableError(f"secret {self} is empty or not set")
        return secret

    def _read_file(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SecretUnreadableError(f"secret {self} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SecretUnreadableError(f"secret {self} is not UTF-8 text") from None

    def __str__(self) -> str:
        return f"file {self.file}" if self.file is not None else f"environment variable {self.env}"


def _short(text: str) -> str:
    """Return untrusted text, shortened for one line of a message."""
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "..."
