"""Passwords and one-time codes.

OpenSSH asks for one-time codes through PAM, for which a host has to be set up. The peer of these
tests is therefore asyncssh's own server: a real exchange of the ssh protocol, not with the server
that sites run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import asyncssh
import pytest

from adapters.shared.commands.settings import SshSettings
from adapters.shared.commands.ssh import SshRunner
from adapters.shared.commands.ssh_login import CODE_INTERVAL_S, Codes, one_time_code
from provisioner.interfaces import AuthError

RFC_SEED = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
"""``12345678901234567890`` in base32: the key of RFC 6238's test vectors."""


@pytest.mark.parametrize(
    ("moment", "digits"), [(59, "287082"), (1234567890, "005924"), (20000000000, "353130")]
)
def test_codes_are_those_of_the_standard(moment: int, digits: str) -> None:
    """RFC 6238, appendix B, SHA-1; the last six of its eight digits."""
    assert (
        one_time_code("gezd gnbv gy3t qojq gezd gnbv gy3t qojq", moment // CODE_INTERVAL_S)
        == digits
    )


async def test_no_code_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000_005.0]
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    codes = Codes()
    given = [await codes.next(RFC_SEED) for _ in range(3)]
    first = 1_000_000_005 // 30
    assert given == [one_time_code(RFC_SEED, first + n) for n in range(3)]
    assert waits == [0.0, (first + 1) * 30 - 1_000_000_005.0, 30.0]


Rounds = Sequence[Sequence[str]]


class Asking(asyncssh.SSHServer):
    """Asks what a login node asks, and notes what it is told."""

    def __init__(
        self, rounds: Rounds, right: Callable[[Sequence[str]], bool], told: list[str]
    ) -> None:
        self._rounds, self._right, self._told = rounds, right, told

    def begin_auth(self, username: str) -> bool:
        return True

    def kbdint_auth_supported(self) -> bool:
        return True

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> object:
        self._left = list(self._rounds)
        self._answers: list[str] = []
        return self._next()

    def _next(self) -> object:
        return "", "", "", [(prompt, False) for prompt in self._left.pop(0)]

    def validate_kbdint_response(self, username: str, responses: Sequence[str]) -> object:
        self._told.extend(responses)
        self._answers.extend(responses)
        return self._next() if self._left else self._right(self._answers)


NewServer = Callable[..., object]


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[NewServer]:
    """``await asking(rounds, right)``: the server's settings without credentials, and the list of what it is told."""
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "seed").write_text(RFC_SEED + "\n")
    (tmp_path / "password").write_text("very secret\n")
    async with AsyncExitStack() as stack:

        async def start(
            rounds: Rounds, right: Callable[[Sequence[str]], bool] = right_now
        ) -> tuple[dict[str, object], list[str]]:
            told: list[str] = []
            factories = {
                "server_factory": lambda: Asking(rounds, right, told),
                "process_factory": lambda process: process.exit(0),
            }
            server = await asyncssh.listen(
                "127.0.0.1", 0, server_host_keys=[host_key], encoding=None, **factories
            )
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
            known_hosts = tmp_path / f"known_hosts.{port}"
            known_hosts.write_bytes(f"[127.0.0.1]:{port} ".encode() + host_key.export_public_key())
            return {
                "host": "127.0.0.1",
                "port": port,
                "user": "me",
                "known_hosts": known_hosts,
            }, told

        yield start


def right_now(answers: Sequence[str], seed: str = RFC_SEED) -> bool:
    step = int(time.time()) // CODE_INTERVAL_S
    return answers[-1] in (one_time_code(seed, step), one_time_code(seed, step - 1))


async def tried(settings: dict[str, object]) -> None:
    async with SshRunner(SshSettings.model_validate(settings)) as runner:
        assert (await runner.run(["true"], deadline_s=20)).code == 0


@pytest.mark.parametrize(
    "prompt", ["Your OTP: ", "Verification code: ", "One-time password (OATH) for `me': "]
)
async def test_a_one_time_code_is_given_where_one_is_asked_for(
    asking: NewServer, tmp_path: Path, prompt: str
) -> None:
    settings, told = await asking([[prompt]])
    await tried({**settings, "totp": {"file": tmp_path / "seed"}})
    assert len(told) == 1


@pytest.mark.parametrize(
    "rounds", [[["Password: "], ["Your OTP: "]], [["Password: ", "Your OTP: "]]]
)
async def test_a_password_and_a_code_go_where_they_belong(
    asking: NewServer, tmp_path: Path, rounds: list[list[str]]
) -> None:
    settings, told = await asking(rounds)
    both = {"totp": {"file": tmp_path / "seed"}, "password": {"file": tmp_path / "password"}}
    await tried({**settings, **both})
    assert told[0] == "very secret"
    assert len(told) == 2


async def test_what_nobody_expected_is_not_answered(asking: NewServer, tmp_path: Path) -> None:
    settings, told = await asking(
        [["New password: ", "Mother's maiden name: "]], lambda answers: True
    )
    with pytest.raises(AuthError, match="asks `Mother's maiden name:`"):
        await tried({**settings, "password": {"file": tmp_path / "password"}})
    assert told == []


async def test_a_code_that_is_refused_is_not_tried_again(asking: NewServer, tmp_path: Path) -> None:
    """Servers lock accounts for that."""
    settings, told = await asking([["Your OTP: "]], lambda answers: False)
    with pytest.raises(AuthError, match=r"one-time code .* refused: is this host's clock right"):
        await tried({**settings, "totp": {"file": tmp_path / "seed"}})
    assert len(told) == 1
