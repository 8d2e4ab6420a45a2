"""Values with units as operators write them, such as ``20 GiB``, ``2h30m`` and ``{file: token}``.

Annotated types for pydantic models of configuration, an adapter's ``Config`` among them. Defaults
are given in the internal unit: ``idle: Duration = 600.0``, ``memory: Size = 4096``. Relative paths
(:data:`ConfigPath`, :class:`Secret`) are taken from the directory that the validation context names
as ``root``, which the loader sets.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

from provisioner import formatting
from provisioner.durations import NUMBER, format_duration, parse_duration, shortened
from provisioner.model import WHOLE_GPU


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """Mark of an annotated type whose values are written in a form of their own."""

    name: str
    """Its name in messages and in the reference."""
    parse: Callable[[object], Any]
    """Returns the value in the internal unit. Raises ValueError with the remedy."""
    format: Callable[[Any], str]
    """Returns a text that ``parse`` reads back."""
    schema: dict[str, Any]
    """JSON Schema of what is written."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return self.schema


def _text_schema(pattern: str, *examples: str) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": pattern,
        **({"examples": list(examples)} if examples else {}),
    }


_DECIMAL_SIZES = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_SIZE_BYTES = _DECIMAL_SIZES | {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_SIZE = re.compile(rf"({NUMBER})\s*([A-Za-z]+)")
_SIZE_LIMIT_MIB = 1024**3


def parse_size(value: object) -> int:
    """Return ``20 GB``, ``20 GiB`` or ``512 MiB`` in MiB, rounded up. The ValueError names the remedy."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        size = max(value, 0)  # nobody writes thousands of GiB, and HTCondor and Slurm use MiB
        text = f"{size:.0f} MiB" if 1024 <= size <= _SIZE_LIMIT_MIB else f"{size:g} GiB"
        raise ValueError(f"a size needs a unit: write `{text}`")
    if not isinstance(value, str):
        raise ValueError("expected a size: write `20 GiB` or `512 MiB`")
    parts = _SIZE.fullmatch(value.strip())
    if not parts:
        raise ValueError(f"`{shortened(value)}` is not a size: write `20 GiB` or `512 MiB`")
    number, unit = parts.groups()
    if unit not in _SIZE_BYTES:
        raise ValueError(_wrong_size_unit(number, unit))
    size_mib = math.ceil(Decimal(number) * _SIZE_BYTES[unit] / 1024**2)
    if size_mib > _SIZE_LIMIT_MIB:
        raise ValueError(f"`{shortened(value)}` is more than 1024 TiB: is the unit right?")
    return size_mib


def _wrong_size_unit(number: str, unit: str) -> str:
    if unit.upper() in ("K", "M", "G", "T"):
        binary = f"{unit.upper()}iB"
        decimal = "kB" if unit.upper() == "K" else f"{unit.upper()}B"
        return f"`{unit}` can mean two things: write `{number} {binary}` (1024s) or `{number} {decimal}` (1000s)"
    same = next((known for known in _SIZE_BYTES if known.lower() == unit.lower()), "GiB")
    return f"`{unit}` is not a unit of size: write `{number} {same}`; known are {', '.join(_SIZE_BYTES)}"


def format_size(size_mib: int) -> str:
    """Return the shortest exact text that :func:`parse_size` reads back as ``size_mib``."""
    for unit, mib in (("TiB", 1024**2), ("GiB", 1024)):
        if size_mib and size_mib % mib == 0:
            return f"{size_mib // mib} {unit}"
    return f"{size_mib} MiB"


_SIZE_PATTERN = rf"^{NUMBER}\s*({'|'.join(_SIZE_BYTES)})$"
Size = Annotated[int, Unit("size", parse_size, format_size, _text_schema(_SIZE_PATTERN, "20 GiB"))]
"""An amount of memory or disk: an int in MiB, rounded up."""

_DURATION_PATTERN = (
    rf"^\s*(?=\d)({NUMBER}\s*w\s*)?({NUMBER}\s*d\s*)?({NUMBER}\s*h\s*)?({NUMBER}\s*(min|m)\s*)?"
    rf"({NUMBER}\s*s\s*)?({NUMBER}\s*ms)?\s*$"
)


_DURATION = Unit(
    "duration", parse_duration, format_duration, _text_schema(_DURATION_PATTERN, "2h30m")
)
Duration = Annotated[float, _DURATION]
"""A time span: a float in seconds, 0 allowed."""


def _above_zero(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than 0s")
    return seconds


PositiveDuration = Annotated[float, _DURATION, AfterValidator(_above_zero)]
"""A :data:`Duration` above zero."""

_GPUS_LIMIT = 1_000_000


def parse_gpus(value: object) -> int:
    """Return a number of GPUs, in steps of 0.001, in milli-GPU; decimal, so without rounding errors."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("expected a number of GPUs: write `1` or `0.5`")
    milli = Decimal(repr(value)) * WHOLE_GPU
    if milli < 0:
        raise ValueError(f"GPUs cannot be negative: write `{abs(value):g}`")
    if milli > _GPUS_LIMIT * WHOLE_GPU:
        raise ValueError(f"`{shortened(str(value))}` is more than {_GPUS_LIMIT} GPUs")
    if milli != milli.to_integral_value():
        raise ValueError(f"GPUs are in steps of 0.001: write `{round(value, 3):g}`")
    return int(milli)


_GPUS_SCHEMA = {"type": "number", "minimum": 0, "maximum": _GPUS_LIMIT, "examples": [1, 0.5]}
Gpus = Annotated[int, Unit("GPUs", parse_gpus, formatting.gpus, _GPUS_SCHEMA)]
"""A number of GPUs, fractions in steps of 0.001: an int in milli-GPU."""

_CAPABILITY = re.compile(r"(\d{1,2})(?:\.(\d))?")


def parse_capability(value: object) -> int:
    """Return CUDA compute capability ``8.0`` times ten."""
    text = (
        value
        if isinstance(value, str)
        else ""
        if isinstance(value, bool) or value is None
        else repr(value)
    )
    parts = _CAPABILITY.fullmatch(text)
    if not parts or not 1 <= int(parts[1]) <= 30:
        raise ValueError(
            "expected a CUDA compute capability such as `8.0` (A100), `8.6` or `9.0` (H100)"
        )
    return int(parts[1]) * 10 + int(parts[2] or 0)


_CAPABILITY_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 1, "exclusiveMaximum": 31},
        _text_schema(r"^\d{1,2}(\.\d)?$"),
    ],
    "examples": [8.0],
}
Capability = Annotated[
    int, Unit("number", parse_capability, formatting.capability, _CAPABILITY_SCHEMA)
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
        raise ValueError(
            'expected the newest CUDA version that the driver supports: write `"12.4"`'
        )
    return int(parts[1]) * 1000 + int(parts[2]) * 10


_CUDA_VERSION = Unit(
    "version in quotes",
    parse_cuda_version,
    lambda version: f'"{formatting.driver(version)}"',
    _text_schema(r"^\d{1,2}\.\d{1,2}$", "12.4"),
)
CudaVersion = Annotated[int, _CUDA_VERSION]
"""A CUDA version in quotes: an int in HTCondor's form: 12.4 is 12040."""

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


def parse_name(value: object) -> str:
    """Return a DNS label in lower case. The ValueError proposes one."""
    if not isinstance(value, str):
        raise ValueError("expected a name: lower-case letters, digits and `-`")
    if not re.fullmatch(NAME_PATTERN[1:-1], value):
        better = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:63].strip("-")
        raise ValueError(
            f"`{shortened(value)}` is not a name (lower-case letters, digits, `-` inside, at most 63): "
            f"write `{better or 'a1'}`"
        )
    return value


Name = Annotated[str, Unit("name", parse_name, str, _text_schema(NAME_PATTERN))]
"""A name: lower-case letters, digits and ``-``, a DNS label."""

_HOST_PATTERN = r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])"
_ADDRESS_PATTERN = rf"{_HOST_PATTERN}:\d{{1,5}}(\?sock=[A-Za-z0-9._-]{{1,100}})?"
_ADDRESSES_PATTERN = rf"^{_ADDRESS_PATTERN}(\s*,\s*{_ADDRESS_PATTERN})*$"


def parse_addresses(value: object) -> str:
    """Return addresses of daemons that stand in for each other, separated by commas without blanks.

    Each is ``host:port``, ``[IPv6]:port``, or either with ``?sock=NAME`` for a daemon behind a
    shared port. The ValueError names the remedy.
    """
    if not isinstance(value, str):
        raise ValueError("expected an address: write `host.example.org:9618`")
    return ",".join(_parse_address(each.strip()) for each in value.split(","))


def _parse_address(text: str) -> str:
    if re.fullmatch(_HOST_PATTERN, text):
        raise ValueError(
            f"`{shortened(text)}` has no port: write `{shortened(text)}:9618`, `host:port`"
        )
    parts = re.fullmatch(_ADDRESS_PATTERN, text)
    if not parts:
        remedy = "write `host.example.org:9618`, `host:port`, or `[2001:db8::1]:9618`"
        raise ValueError(f"`{shortened(text)}` is not an address: {remedy}")
    if not 1 <= int(text.partition("?")[0].rpartition(":")[2]) <= 65535:
        raise ValueError(f"`{shortened(text)}`: a port is a number from 1 to 65535")
    return text


Addresses = Annotated[str, Unit("text", parse_addresses, str, _text_schema(_ADDRESSES_PATTERN))]
"""``host:port``, or several, separated by commas."""


def parse_path(value: object, info: ValidationInfo) -> str:
    """Return an absolute path; a relative one is taken from ``root`` of the validation context."""
    text = str(value) if isinstance(value, str | Path) else ""
    # `provisioner import` writes `<what is missing>` for what only the operator knows.
    if not text.strip() or "\0" in text or text.startswith("<"):
        raise ValueError(
            "expected a path: write `var/drones` (relative to this file) or `/var/lib/drones`"
        )
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"`{shortened(text)}`: no such user") from None
    root = info.context.get("root") if isinstance(info.context, dict) else None
    return os.path.normpath(root / path) if isinstance(root, Path) else str(path)


ConfigPath = Annotated[
    Path, BeforeValidator(parse_path), WithJsonSchema({"type": "string", "minLength": 1})
]
"""A path; a relative one is taken from the directory of the file that contains it. It need not exist."""


class SecretUnreadableError(Exception):
    """A secret that cannot be read now; the message never contains the secret."""


_ONE_OF_BOTH: JsonDict = {"oneOf": [{"required": ["file"]}, {"required": ["env"]}]}


class Secret(BaseModel):
    """A reference to a secret, ``{file: path}`` or ``{env: NAME}``; the secret itself is read when needed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, json_schema_extra=_ONE_OF_BOTH
    )

    file: ConfigPath | None = Field(None, examples=["token"])
    """File that contains the secret; white space around it is removed."""
    env: str | None = Field(None, min_length=1, examples=["POOL_TOKEN"])
    """Environment variable of the controller that contains the secret."""

    @model_validator(mode="before")
    @classmethod
    def _never_literal(cls, value: Any) -> Any:
        if not isinstance(value, dict | cls):
            raise ValueError(
                "a secret must not be in the configuration: write `{file: path}` or `{env: NAME}`"
            )
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError(
                "exactly one of `file` and `env` is needed: write `{file: path}` or `{env: NAME}`"
            )
        return self

    def read(self) -> str:
        """Return the current secret, read at each call so that it can be rotated.

        Raises:
            SecretUnreadableError: no such file or variable, not readable, not text, or empty.
        """
        try:
            secret = (
                self.file.read_text(encoding="utf-8-sig")
                if self.file
                else os.environ.get(self.env or "", "")
            )
        except OSError as error:
            raise SecretUnreadableError(f"secret {self} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise SecretUnreadableError(f"secret {self} is not UTF-8 text") from None
        if not secret.strip():
            raise SecretUnreadableError(f"secret {self} is empty or not set")
        return secret.strip()

    def __str__(self) -> str:
        return f"file {self.file}" if self.file is not None else f"environment variable {self.env}"
