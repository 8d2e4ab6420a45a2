"""What the contract of a site asks of drones, as shell scripts that need no pool."""

from __future__ import annotations

from provisioner.model import Admission


class ShellDrones:
    """A part of a ``SiteWorld``."""

    def living(self) -> Admission:
        return Admission(b"#!/bin/sh\nexec sleep 1000\n", {"TOLD": 'it\'s $HOME, "quoted"'}, {"token": b"secret"})

    def stubborn(self) -> Admission:
        return Admission(
            b"#!/bin/sh\ntrap '' TERM INT HUP\nsleep 1000 &\nsetsid sleep 1000 &\nsetsid sh -c 'sleep 1000; :' &\n"
            b"while :; do sleep 1000; done\n"
        )

    def exiting(self, code: int) -> Admission:
        return Admission(f"#!/bin/sh\necho it leaves with {code}\nexit {code}\n".encode())
