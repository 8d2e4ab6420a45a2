"""Apache with mod_auth_openidc in front of the web service, as the how-to describes it, on free loopback ports."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.labs.htcondor import LabError, fetched

MODULES = "mpm_event authn_core authz_core authz_user auth_openidc headers proxy proxy_http"
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "web-login.md"
SURROUNDINGS = """\
ServerRoot {here}
PidFile {here}/pid
ErrorLog {here}/error.log
ServerName localhost
Listen 127.0.0.1:{port}
{account}
{modules}
"""
ACCOUNT = "nobody"
"""Apache drops root, as it does on a host."""


@dataclass(frozen=True)
class Apache:
    """The unpacked server of a Debian release."""

    prefix: Path

    @classmethod
    def fetched(cls, suite: str = "bookworm") -> Apache:
        return cls(fetched("get-apache.sh", suite))

    @property
    def account(self) -> str:
        """Account under which its children run."""
        import pwd

        return ACCOUNT if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def example() -> str:
    """Return the configuration of the how-to."""
    text = HOW_TO.read_text()
    return text.partition("```apache\n")[2].partition("```")[0]


@contextmanager
def running_apache(
    apache: Apache, here: Path, port: int, provider: str, socket: Path
) -> Iterator[str]:
    """Start it in an empty directory that others can enter. Yields its address."""
    url = f"http://localhost:{port}"
    group = "nogroup" if os.geteuid() == 0 else ""
    account = f"User {ACCOUNT}\nGroup {group}" if group else ""
    modules = "\n".join(
        f"LoadModule {n}_module {apache.prefix}/modules/mod_{n}.so" for n in MODULES.split()
    )
    ours = example()
    for theirs, mine in (
        ("https://sso.example.edu", provider),
        ("https://drones.example.edu", url),
        ("/run/provisioner-web/proxy.sock", str(socket)),
    ):
        assert theirs in ours, f"the how-to has no {theirs}"
        ours = ours.replace(theirs, mine)
    text = SURROUNDINGS.format(here=here, port=port, account=account, modules=modules) + ours
    (here / "apache.conf").write_text(text)
    process = subprocess.Popen(
        [apache.prefix / "apache2", "-DFOREGROUND", "-f", here / "apache.conf"]
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{url}/-/healthy", timeout=5)
            except urllib.error.HTTPError:
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = here / "error.log"
                    raise LabError(
                        f"Apache does not answer: {log.read_text() if log.exists() else error}"
                    ) from error
                time.sleep(0.1)
            else:
                break
        yield url
    finally:
        process.terminate()
        process.wait(20)
