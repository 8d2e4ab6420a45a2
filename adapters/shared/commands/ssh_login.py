"""Login: through the jump host to the login node, by key, agent, password and one-time code."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import asyncssh

from adapters.shared.commands.settings import SshSettings
from adapters.shared.printing import printable
from provisioner.config.units import Secret, SecretUnreadableError
from provisioner.interfaces import AuthError, UnavailableError

_CODE_PROMPT = re.compile(
    r"one.?time|\botp\b|token|verification|authenticator|passcode|second factor|\b[2m]fa\b", re.I
)
_PASSWORD_PROMPT = re.compile(r"passwor[dt]", re.I)
CODE_INTERVAL_S = 30


def one_time_code(seed: str, step: int) -> str:
    """Return the code of RFC 6238 (SHA-1, six digits) of a half minute since the epoch. ValueError for a bad seed."""
    letters = "".join(seed.split()).upper().rstrip("=")
    try:
        key = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except binascii.Error:
        raise ValueError("the seed of the one-time codes is not base32") from None
    mac = hmac.digest(key, struct.pack(">Q", step), "sha1")
    at = mac[-1] & 15
    return f"{(int.from_bytes(mac[at : at + 4], 'big') & 0x7FFFFFFF) % 10**6:06}"


class Codes:
    """One-time codes of one seed. A server takes each only once, so a second one waits for the next half minute."""

    def __init__(self) -> None:
        self._last = 0

    async def next(self, seed: str) -> str:
        step = self._last = max(int(time.time()) // CODE_INTERVAL_S, self._last + 1)
        await asyncio.sleep(max(0.0, step * CODE_INTERVAL_S - time.time()))
        return one_time_code(seed, step)


async def login(
    settings: SshSettings, codes: Codes, lost: Callable[[], None]
) -> Sequence[asyncssh.SSHClientConnection]:
    """Return connections to the jump host, if any, and through it to the login node; ``lost`` is called when it ends.

    The caller sets the deadline. Raises UnavailableError or AuthError, with the remedy.
    """
    where = f"{settings.user}@{settings.host}"
    if not settings.known_hosts.is_file():
        raise AuthError(
            f"{where}: there is no {settings.known_hosts}: put the host's key there (`ssh-keyscan -p {settings.port}"
            f" {settings.host}`) after comparing its fingerprint with what the site says"
        )
    hops: list[asyncssh.SSHClientConnection] = []
    try:
        async with contextlib.AsyncExitStack() as stack:
            keys = await _keys(settings, where, stack)
            for user, host, port in _hops(settings):
                answers = _Answers(settings, codes, lost if host is settings.host else lambda: None)
                with _explained(f"{user}@{host}:{port}", settings, answers):
                    hops.append(
                        await asyncssh.connect(
                            host.strip("[]"),
                            port,
                            username=user,
                            tunnel=hops[-1] if hops else (),
                            config=None,  # nothing of ~/.ssh/config
                            known_hosts=str(settings.known_hosts),
                            x509_trusted_certs=None,
                            client_keys=keys or None,
                            agent_path=None,  # its keys, if wanted, are among `keys`
                            gss_host=None,
                            client_factory=lambda answers=answers: answers,
                            keepalive_interval=settings.keepalive,
                            keepalive_count_max=3,
                            connect_timeout=settings.connect_deadline,
                            login_timeout=settings.connect_deadline,
                        )
                    )
    except BaseException:
        for hop in reversed(hops):
            hop.abort()
        raise
    return hops


def _hops(settings: SshSettings) -> Iterator[tuple[str, str, int]]:
    if settings.jump is not None:
        user, _, rest = settings.jump.rpartition("@")
        host, colon, port = (rest, "", "") if rest.endswith("]") else rest.rpartition(":")
        yield user or settings.user, host if colon else rest, int(port) if colon else 22
    yield settings.user, settings.host, settings.port


async def _keys(
    settings: SshSettings, where: str, stack: contextlib.AsyncExitStack
) -> Sequence[asyncssh.SSHKeyPair]:
    """Return the keys to offer, read at each login so that they can be changed."""
    keys: list[asyncssh.SSHKeyPair] = []
    if settings.key is not None:
        try:
            phrase = settings.passphrase.read() if settings.passphrase else None
            # in a thread: a key with a passphrase is slow to open, on purpose
            keys += await asyncio.to_thread(asyncssh.load_keypairs, str(settings.key), phrase)
        except (OSError, ValueError, SecretUnreadableError) as error:
            raise AuthError(f"{where}: key {settings.key}: {_words(error)}") from None
    if settings.agent:
        path = os.environ.get("SSH_AUTH_SOCK", "")
        try:
            agent = await asyncssh.connect_agent(path)
            stack.push_async_exit(agent)
            keys += await agent.get_keys()
        except (OSError, ValueError) as error:
            raise AuthError(
                f"{where}: no ssh agent at SSH_AUTH_SOCK=`{path}`: {_words(error)}"
            ) from None
    return keys


@contextlib.contextmanager
def _explained(host: str, settings: SshSettings, answers: _Answers) -> Iterator[None]:
    try:
        yield
    except asyncssh.HostKeyNotVerifiable as error:
        raise AuthError(
            f"{host}: its host key is not in {settings.known_hosts} ({_words(error)}): compare the fingerprint with"
            " what the site says and put the key there, or find out who answers in its place"
        ) from None
    except (asyncssh.PermissionDenied, asyncssh.IllegalUserName) as error:
        raise AuthError(f"{host}: login refused: {answers.complaint or _words(error)}") from None
    except (asyncssh.Error, OSError) as error:
        raise UnavailableError(f"{host}: {_words(error)}") from None


class _Answers(asyncssh.SSHClient):
    """Our side of a login. Each secret is given once, and an unexpected prompt is not answered."""

    def __init__(self, settings: SshSettings, codes: Codes, lost: Callable[[], None]) -> None:
        self._settings = settings
        self._codes = codes
        self._lost = lost
        self._said: set[str] = set()
        self.complaint = ""
        """Our reason for giving up."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def password_auth_requested(self) -> str | None:
        return self._once("password", self._settings.password)

    def kbdint_auth_requested(self) -> str | None:
        return "" if self._settings.password or self._settings.totp else None

    async def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
    ) -> Sequence[str] | None:
        answers: list[str] = []
        for prompt, _ in prompts:
            if (answer := await self._answer(prompt)) is None:
                return None
            answers.append(answer)
        return answers

    async def _answer(self, prompt: str) -> str | None:
        totp = self._settings.totp
        password = self._settings.password
        if totp and (_CODE_PROMPT.search(prompt) or not password):
            seed = self._once("one-time code", totp)
            try:
                return seed and await self._codes.next(seed)
            except ValueError as error:
                self._complain(f"{totp}: {error}")
                return None
        if password and _PASSWORD_PROMPT.search(prompt):
            return self._once("password", password)
        self._complain(
            f"it asks `{printable(prompt.strip(), 60)}`, and neither `password` nor `totp` answers that"
        )
        return None

    def _once(self, what: str, secret: Secret | None) -> str | None:
        if secret is None:
            return None
        if what in self._said:
            clock = ": is this host's clock right?" if what == "one-time code" else ""
            self._complain(f"the {what} of {secret} is refused{clock}")
            return None
        self._said.add(what)
        try:
            return secret.read()
        except SecretUnreadableError as error:
            self._complain(str(error))
            return None

    def _complain(self, words: str) -> None:
        self.complaint = self.complaint or words  # the first one is the cause: a server asks again


def _words(error: Exception) -> str:
    return printable(str(error) or type(error).__name__, 200)
