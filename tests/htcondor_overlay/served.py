"""What the tests of the child process have it serve."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

from provisioner.interfaces import AuthError, RejectedError
from provisioner.model import FaultKind


class Echo:
    """Answers, hangs, dies."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting
        self.calls = 0

    def greet(self, name: str) -> str:
        self.calls += 1
        print("what a library prints must not be taken for an answer")
        return f"{self.greeting} {name} {self.calls}"

    def pid(self) -> int:
        return os.getpid()

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def hang_with_the_lock(self) -> None:
        """As the HTCondor bindings do: waits in C and keeps the interpreter's lock."""
        ctypes.PyDLL(None).sleep(600)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start_helper(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    def die(self) -> None:
        print("the last straw", file=sys.stderr, flush=True)
        os.abort()

    def leave(self) -> None:
        os._exit(7)

    def denied(self) -> None:
        raise AuthError("token is not for this pool")

    def throttled(self) -> None:
        raise RejectedError("slow down", FaultKind.THROTTLED)

    def bug(self) -> None:
        raise KeyError("no such key")

    def unpicklable(self) -> object:
        return lambda: None
