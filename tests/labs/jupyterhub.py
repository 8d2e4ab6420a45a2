"""A JupyterHub on loopback whose users' notebook servers are jobs of the lab's overlay pool, by batchspawner.

Its configuration is the block of docs/how-to/interactive.md, and on top of it what a host with one
account, no names of nodes and nothing but loopback needs.
"""

from __future__ import annotations

import json
import pwd
import re
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import (
    HTTPCookieProcessor,
    HTTPRedirectHandler,
    ProxyHandler,
    Request,
    build_opener,
)

from tests.labs.htcondor import LOCAL, Pool, end, fetched, lab_directory, launch, living_in, until
from tests.labs.ports import free_port

HOW_TO = Path(__file__).parents[2] / "docs/how-to/interactive.md"
OURS = """
c.JupyterHub.bind_url = "{url}"
c.JupyterHub.hub_ip = c.JupyterHub.hub_connect_ip = "{address}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://{address}:{proxy_port}"
c.ConfigurableHTTPProxy.command = ["{programs}/node_modules/.bin/configurable-http-proxy"]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = "{password}"
c.Authenticator.allow_all = True
c.CondorSpawner.exec_prefix = ""  # one account
c.CondorSpawner.batch_submit_cmd = "env CONDOR_CONFIG={config} {condor}/usr/bin/condor_submit"
c.CondorSpawner.batchspawner_singleuser_cmd = "{programs}/bin/batchspawner-singleuser"
c.Spawner.cmd = ["{programs}/bin/jupyterhub-singleuser"]
c.CondorSpawner.state_exechost_exp = "{address}"
c.CondorSpawner.req_nprocs = "1"
c.CondorSpawner.req_memory = "256 MB"
c.Spawner.args = ["--ServerApp.ip={address}"]
"""


class HubAnswer(NamedTuple):
    """Answer to a request."""

    status: int
    text: str


class _Unmoved(HTTPRedirectHandler):
    """Follows no redirection: that after the log-in starts a server."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass
class Hub:
    """A hub that runs, and its only user, who is logged in by :meth:`log_in`."""

    directory: Path
    url: str
    user: str
    password: str
    process: subprocess.Popen[bytes]
    token: str = ""
    _cookies: CookieJar = field(default_factory=CookieJar)

    @property
    def said(self) -> str:
        return (self.directory / "hub.log").read_text(errors="replace")

    def up(self) -> bool:
        assert self.process.poll() is None, self.said
        return self._send("GET", "/hub/health").status == 200

    def log_in(self) -> None:
        """Log in as a browser does, by the form, and get a token for the API."""
        assert self._send("GET", "/hub/login").status == 200
        form = {"username": self.user, "password": self.password, "_xsrf": self._proof}
        assert self._send("POST", "/hub/login", urlencode(form)).status == 302, self.said
        head = {"X-XSRFToken": self._proof, "Content-Type": "application/json"}
        page = f"/hub/api/users/{self.user}/tokens"
        answer = self._send("POST", page, '{"note": "test"}', **head)
        assert answer.status == 201, self.said
        self.token = json.loads(answer.text)["token"]

    @property
    def _proof(self) -> str:
        """Return the token by which the hub recognises requests of its own pages."""
        found = [each.value for each in self._cookies if each.name == "_xsrf"]
        return found[-1] or ""

    def ask(self, method: str, path: str) -> HubAnswer:
        """Send a request of the user's to the hub, or through its proxy to their server."""
        self._cookies.clear()
        return self._send(method, path, Authorization=f"token {self.token}")

    def _send(self, method: str, path: str, body: str = "", **headers: str) -> HubAnswer:
        request = Request(f"{self.url}{path}", body.encode() or None, headers, method=method)
        browser = build_opener(ProxyHandler({}), HTTPCookieProcessor(self._cookies), _Unmoved)
        try:
            with browser.open(request, timeout=30) as answer:
                return HubAnswer(answer.status, answer.read().decode())
        except HTTPError as error:
            return HubAnswer(error.code, error.read().decode())


@contextmanager
def running_hub(pool: Pool) -> Iterator[Hub]:
    """Start a hub whose servers are jobs of alice in a pool. Its programs come from PyPI and npm."""
    programs = fetched("get-jupyterhub.sh")
    (block,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    with lab_directory("jupyterhub") as directory:
        user = pwd.getpwuid(pool.account.uid).pw_name
        url, password = f"http://{LOCAL}:{free_port()}", secrets.token_hex(8)
        ports = {"hub_port": free_port(), "proxy_port": free_port()}
        config = pool.dir / "clients/alice/condor_config"
        places = {"programs": programs, "condor": pool.condor.prefix, "config": config}
        ours = OURS.format(url=url, address=LOCAL, password=password, **ports, **places)
        (directory / "config.py").write_text(block + ours)
        pool.account.give(directory)
        env = {
            "PATH": f"{programs}/bin:{pool.condor.path}",
            "HOME": str(directory),
            "CONDOR_CONFIG": str(config),
        }
        command = (programs / "bin/jupyterhub", "-f", "config.py")
        log = directory / "hub.log"
        process = launch(command, log, env=env, cwd=directory, **pool.account.run)
        hub = Hub(directory, url, user, password, process)
        try:
            until(hub.up, 60, what="the hub answers")
            yield hub
        finally:
            end(process, signal.SIGTERM, 60)
            until(lambda: not living_in(directory), what="its proxy has ended as well")
