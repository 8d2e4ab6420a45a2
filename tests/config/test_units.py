"""Values with units: what an operator writes, what it means, and what is told when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, ValidationError

from provisioner.config import units
from provisioner.durations import format_duration, parse_duration


class Written(BaseModel):
    size: units.Size = 0
    duration: units.Duration = 0.0
    positive: units.PositiveDuration = 1.0
    gpus: units.Gpus = 0
    capability: units.Capability = 0
    driver: units.CudaVersion = 0
    name: units.Name = "a"
    address: units.Addresses = "a:1"
    path: units.ConfigPath = Path()
    secret: units.Secret | None = None


MEANINGS: list[tuple[str, dict[Any, Any]]] = [
    # 20e9 bytes are 19073.49 MiB: rounded up, never down
    (
        "size",
        {
            "20 GiB": 20480,
            "20GiB": 20480,
            "512 MiB": 512,
            "1.5 TiB": 1572864,
            "20 GB": 19074,
            "1 B": 1,
        },
    ),
    (
        "duration",
        {
            "2h30m": 9000.0,
            "10min": 600.0,
            "90 s": 90.0,
            "1d": 86400.0,
            "1w 2d": 777600.0,
            "250ms": 0.25,
        },
    ),
    ("duration", {"0.1s": 0.1, "0s": 0.0, "3660d": 316_224_000.0, " 1w1d1h1m1s1ms ": 694_861.001}),
    # 0.29 * 1000 is 290.00000000000006 in binary floating point
    ("gpus", {1: 1000, 0.001: 1, 1_000_000: 1_000_000_000, 0.3: 300, 0.29: 290}),
    ("capability", {"1": 10, 30.9: 309, 8.0: 80, 8.6: 86, "12.0": 120}),
    ("driver", {"1.0": 1000, "12.4": 12040, "12.10": 12100}),
    ("name", {"gridka-cloud": "gridka-cloud"}),
    (
        "address",
        {"cm.example.org:65535": "cm.example.org:65535", "cm1:9618, cm2:9618": "cm1:9618,cm2:9618"},
    ),
    ("address", {"[2001:db8::1]:9618": "[2001:db8::1]:9618"}),
    (
        "address",
        {
            "cm1:9618?sock=collector,[::1]:9620?sock=c_2": "cm1:9618?sock=collector,[::1]:9620?sock=c_2"
        },
    ),
]
"""Values as they are written, and in the internal unit."""
WRONG: list[tuple[str, dict[Any, str]]] = [
    (
        "size",
        {
            20: "write `20 GiB`",
            20480: "write `20480 MiB`",
            1023: "write `1023 GiB`",
            True: "write `20 GiB`",
        },
    ),
    ("size", {"20 g": "write `20 GiB` (1024s) or `20 GB` (1000s)", "-1 GiB": "write `20 GiB`"}),
    ("address", {"cm.example.org": "no port: write `cm.example.org:9618`"}),
    ("address", {"cm.example.org:0": "a port is a number from 1 to 65535"}),
    ("address", {"<10.0.0.1:9618?addrs=x>": "is not an address: write `host.example.org:9618`"}),
    ("address", {"cm1:9618,": "is not an address", "cm1:9618,cm2": "`cm2` has no port"}),
    ("address", {"[::1]": "no port: write `[::1]:9618`", "2001:db8::1": "or `[2001:db8::1]:9618`"}),
    ("address", {"cm1:9618?addrs=x": "is not an address"}),
    (
        "duration",
        {
            30: "write `30s` or `30min`",
            -30: "write `0s` or `0min`",
            "-5s": "`-5s` is not a duration",
        },
    ),
    (
        "duration",
        {
            "5s 3": "`5s 3` is not a duration",
            "10min 10h": "each unit once",
            "3661d": "more than ten years",
        },
    ),
    ("gpus", {-0.5: "write `0.5`", 0.0004: "write `0`", 1_000_000.001: "more than 1000000 GPUs"}),
    (
        "gpus",
        {
            0.0001: "steps of 0.001",
            float("nan"): "write `1` or `0.5`",
            float("inf"): "write `1` or `0.5`",
        },
    ),
    (
        "capability",
        {
            "0.9": "`8.0`",
            "31.0": "`8.0`",
            True: "`8.0`",
            "8.0.1": "`8.0`",
            80: "`8.0`",
            8.65: "`8.0`",
        },
    ),
    (
        "driver",
        {
            "0.4": 'write `"12.4"`',
            True: 'write `"12.4"`',
            12.1: 'write `"12.1"`',
            12: 'write `"12.0"`',
        },
    ),
    (
        "name",
        {
            "-Ab c-" + "d" * 80: "write `ab-c-" + "d" * 58 + "`",
            "x" * 41 + "!": "`" + "x" * 37 + "...`",
        },
    ),
    (
        "name",
        {
            "x" * 39 + "!": "`" + "x" * 39 + "!`",
            "GridKa Cloud": "write `gridka-cloud`",
            "-": "write `a1`",
        },
    ),
    ("name", {"a" * 64: "at most 63", "a\n": "write `a`"}),
    ("positive", {"0s": "must be longer than 0s"}),
    (
        "path",
        {"": "write `var/drones`", 7: "write `var/drones`", "~no-such-user/x": "no such user"},
    ),
    ("secret", {"hunter2": "write `{file: path}` or `{env: NAME}`"}),
]
"""Wrong values, and what their message contains."""


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [(key, text, value) for key, cases in MEANINGS for text, value in cases.items()],
)
def test_what_is_written_means(key: str, text: object, value: object) -> None:
    assert getattr(Written.model_validate({key: text}), key) == value


@pytest.mark.parametrize(
    ("key", "text", "repair"),
    [(key, text, repair) for key, cases in WRONG for text, repair in cases.items()]
    + [("secret", {}, "exactly one"), ("secret", {"file": "a", "env": "B"}, "exactly one")],
)
def test_what_is_wrong_is_told_with_what_to_write(key: str, text: object, repair: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Written.model_validate({key: text})
    [error] = raised.value.errors()
    assert repair in error["msg"]


@given(st.integers(min_value=0, max_value=2**30))
def test_sizes_survive_being_written_and_read(size_mib: int) -> None:
    assert units.parse_size(units.format_size(size_mib)) == size_mib


@given(st.integers(min_value=0, max_value=10 * 365 * 86_400_000))
def test_durations_survive_being_written_and_read(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize("kind", ["size", "duration", "gpus", "capability", "cuda_version", "name"])
@given(
    written=st.text()
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.lists(st.integers())
)
def test_whatever_is_written_the_answer_is_a_value_or_one_line(kind: str, written: object) -> None:
    try:
        getattr(units, f"parse_{kind}")(written)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)


def test_a_relative_path_starts_where_its_file_is() -> None:
    read = Written.model_validate(
        {"path": "../var/x", "secret": {"file": "token"}}, context={"root": Path("/etc/p")}
    )
    assert read.path == Path("/etc/var/x")
    assert read.secret is not None
    assert read.secret.file == Path("/etc/p/token")


def test_a_secret_is_read_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    from_file, from_env = units.Secret(file=token), units.Secret(env="THE_TOKEN")
    monkeypatch.setenv("THE_TOKEN", " one ")
    assert (from_file.read(), from_env.read()) == ("first", "one")
    token.write_text("second\n")
    monkeypatch.setenv("THE_TOKEN", "two")
    assert (from_file.read(), from_env.read()) == ("second", "two")


def test_a_secret_that_cannot_be_had_is_told_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    for secret, words in [
        (units.Secret(file=tmp_path / "none"), "No such file"),
        (units.Secret(file=tmp_path), "Is a directory"),
        (units.Secret(file=empty), "is empty or not set"),
        (units.Secret(file=binary), "is not UTF-8 text"),
        (
            units.Secret(env="NO_SUCH_TOKEN"),
            "environment variable NO_SUCH_TOKEN is empty or not set",
        ),
    ]:
        with pytest.raises(units.SecretUnreadableError, match=words):
            secret.read()


def test_a_secret_saved_with_a_byte_order_mark_is_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"\xef\xbb\xbfs3cret\r\n")
    assert units.Secret(file=file).read() == "s3cret"
