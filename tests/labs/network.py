"""A network namespace with a link to this host, one address of which can be cut off."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
WANTED = "network namespaces need root and `ip` of iproute2"
NO_SUCH_CARD = "02:00:00:00:00:01"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, text=True, capture_output=True)


def available() -> bool:
    """Return True if namespaces can be made: by root, with ``ip`` of iproute2."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def inside(namespace: str) -> tuple[str, ...]:
    """Return the words that begin a command which runs in a namespace as an ordinary account."""
    return ("ip", "netns", "exec", namespace, *AS_NOBODY)


class Apart:
    """A namespace with one address, ``there``; this host has two beside it, ``here`` and ``far``."""

    def __init__(self) -> None:
        number = random.SystemRandom().randrange(1 << 16)
        self.there, self.here, self.far = (
            f"198.19.{number >> 8}.{number & 248 | each}" for each in (1, 2, 3)
        )
        self.namespace = f"lab-apart-{number:04x}"
        self._link = f"la{number:04x}"

    def __enter__(self) -> Apart:
        host, peer = self._link, f"{self._link}p"
        within = ("-n", self.namespace)
        ip("netns", "add", self.namespace)
        try:
            ip(*within, "link", "set", "lo", "up")
            ip("link", "add", host, "type", "veth", "peer", "name", peer, "netns", self.namespace)
            ip("addr", "add", self.here, "peer", self.there, "dev", host)
            ip("addr", "add", self.far, "dev", host)
            ip(*within, "addr", "add", self.there, "peer", self.here, "dev", peer)
            ip("link", "set", host, "up")
            ip(*within, "link", "set", peer, "up")
            ip(*within, "route", "add", self.far, "dev", peer)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("netns", "del", self.namespace)  # takes its link along

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Lose all that the namespace sends to ``far``, without a word, as a broken line does."""
        neighbour = (self.far, "dev", f"{self._link}p")
        within = ("-n", self.namespace, "neigh")
        ip(*within, "replace", *neighbour, "lladdr", NO_SUCH_CARD, "nud", "permanent")
        try:
            yield
        finally:
            ip(*within, "del", *neighbour)
