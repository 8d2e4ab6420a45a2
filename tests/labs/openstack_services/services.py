"""A lab's real services as processes: start one, ask whether it answers. Standard library only."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

try:
    from .settings import Settings
except ImportError:  # in the lab's own interpreter, where these are programs and not a package
    from settings import Settings  # type: ignore[no-redef]


def launch(lab: Settings, name: str, more: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
    """It ends when the thread that calls this ends."""
    command = [lab.venv / "bin/python", Path(__file__).with_name("serve.py"), name, lab.ports[name]]
    with (lab.directory / f"log/{name}.out").open("ab") as out:
        return subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                *map(str, command),
                *(lab.hosts if name == "nova" else ()),
            ],
            env={**lab.environment, **more},
            cwd=lab.directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def answers(lab: Settings, name: str) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", lab.ports[name], timeout=5)) as service:
        try:
            service.request("GET", "/")
            return service.getresponse().status < 500
        except OSError:
            return False
