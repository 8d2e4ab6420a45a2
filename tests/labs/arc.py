"""An ARC computing element (A-REX, fork back-end, REST interface), and an issuer of tokens that it trusts.

All of it lives in namespaces of its own, where its programs lie over /usr and nothing outside
reaches its port: A-REX listens on all addresses. So does the access point, for the same reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from adapters.htcondor.site import HTCondorSite, HTCondorSiteConfig
from provisioner import model
from tests.labs import htcondor
from tests.labs.grid_site import ACCESS
from tests.labs.htcondor import Condor, Pool, fetched, running
from tests.labs.scitokens import Signer

ELEMENT = "https://arc.test:443/arex/rest/1.0"
ISSUER = "https://arc.test:8443/"
KIND = model.DroneType(
    "arc", "cpu", gpu_milli=0, cpus=2, memory_mib=512, disk_mib=10, walltime_s=3600.0
)
_ENTER = """
mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/work" /etc
mkdir -p /var/spool /var/log/arc
mount -t tmpfs tmpfs /var/spool
mount -t tmpfs tmpfs /run
mount --bind "$1/log" /var/log
mkdir -p /var/spool/arc/jobstatus
hostname arc.test
ip link set lo up
shift
code=0
"$@" || code=$?
exit $code
"""
"""The shell stays the first process: it reaps those of ended jobs, which A-REX would take for alive."""
_CONFIG = """
[common]
hostname = arc.test
x509_host_key = /etc/grid-security/testCA-hostkey.pem
x509_host_cert = /etc/grid-security/testCA-hostcert.pem
x509_cert_dir = /etc/grid-security/certificates
[authtokens]
[authgroup:all]
authtokens = * * * * *
[mapping]
map_to_user = all nobody:nogroup
[lrms]
lrms = fork
[arex]
wakeupperiod = 3
[arex/ws]
wsurl = https://arc.test:443/arex
[arex/ws/jobs]
allowaccess = all
[infosys]
[infosys/glue2]
[infosys/cluster]
[queue:fork]
"""


def inside(state: Path, *command: str) -> list[str]:
    """Return a command that runs another one where A-REX is to live; all that it starts ends with it."""
    for name in ("etc", "work", "log/arc"):
        (state / name).mkdir(parents=True)
    namespaces = ("--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
    prefix = fetched("get-arc.sh")
    return ["unshare", *namespaces, "sh", "-e", "-c", _ENTER, str(prefix), str(state), *command]


# ------------------------------------------------------------------------------------ in there


def _run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdout=sys.stderr, timeout=120)


def start_arex(state: Path) -> None:
    """Start A-REX with a certificate of its own, and wait until it answers."""
    Path("/etc/hosts").write_text("127.0.0.1 arc.test localhost\n")
    security = Path("/etc/grid-security")
    (security / "certificates").mkdir(parents=True, exist_ok=True)
    _run("arcctl", "test-ca", "init", cwd=state)
    _run("arcctl", "test-ca", "hostcert", "-n", "arc.test", cwd=state)
    for kind in ("cert", "key"):
        (state / f"host-arc.test-{kind}.pem").rename(state / f"etc-{kind}.pem")
        _run("cp", f"etc-{kind}.pem", str(security / f"testCA-host{kind}.pem"), cwd=state)
    Path("/etc/arc.conf").write_text(_CONFIG)
    # else A-REX makes parameters of its own, which takes minutes
    group = ("-algorithm", "DH", "-pkeyopt", "group:ffdhe2048")
    parameters = "/var/spool/arc/jobstatus/dhparam.pem"
    _run("openssl", "genpkey", "-genparam", *group, "-out", parameters, cwd=state)
    for service in ("arc-arex-start", "arc-arex-ws-start"):
        _run(f"/usr/share/arc/{service}", cwd=state)


def start_issuer(state: Path) -> str:
    """Start the issuer, and return a token of it that may do everything with jobs."""
    signer = Signer()
    answers = {True: {"issuer": ISSUER, "jwks_uri": f"{ISSUER}jwks"}, False: signer.keys()}

    class Issuer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers["well-known" in self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 8443), Issuer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(state / "etc-cert.pem", state / "etc-key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    claims = {
        "iss": ISSUER,
        "sub": "drones",
        "aud": "https://wlcg.cern.ch/jwt/v1/any",
        "wlcg.ver": "1.0",
        "scope": "compute.create compute.read compute.modify compute.cancel",
    }
    return signer.token(**claims)


def site_of(access: Pool, token: Path, work: Path) -> HTCondorSite:
    options = {
        "collector": access.collector,
        "token": {"file": str(access.dir / "clients/alice/tokens/alice")},
        "client_config": htcondor.LOOPBACK,
        "work_directory": str(work),
        "submit": {
            "universe": "grid",
            "grid_resource": f"arc {ELEMENT}",
            "scitokens_file": str(token),
            "batch_queue": "fork",
        },
    }
    return HTCondorSite("arc", HTCondorSiteConfig.model_validate(options), [KIND], "main")


Lives = dict[str, list[str]]


async def drones_lives(
    site: HTCondorSite,
    orders: Sequence[model.StartOrder],
    stopped: str,
    is_home: Callable[[], bool],
) -> Lives:
    """Start drones, stop one as it runs, and return what became of each, from poll to poll.

    It ends when all have ended and what they leave ``is_home``.
    """
    lives: Lives = {order.drone_id: [] for order in orders}
    async with site:
        lives["check"] = [each.message for each in await site.audit(model.SitePolicy("arc"))]
        await site.start(orders)
        end = time.monotonic() + 240
        while time.monotonic() < end:
            drones = (await site.poll()).drones
            for drone_id, drone in drones.items():
                how = drone.end
                what = f"{how.kind.value} {how.exit_code}" if how else drone.state.value
                if what not in lives[drone_id][-1:]:
                    lives[drone_id].append(what)
                    if (what, drone_id) == ("running", stopped):
                        await site.stop([model.StopOrder(drone_id, "")])
            if drones and all(drone.end for drone in drones.values()) and is_home():
                break
            await asyncio.sleep(1)
    print(f"lives: {lives}", file=sys.stderr)
    return lives


SCRIPT = b"#!/bin/sh\ncat token\nsleep ${SLEEPS}\necho left >outcome\nexit ${CODE:-0}\n"


def _order(serial: int, **env: str) -> model.StartOrder:
    boot = model.Bootstrap(
        SCRIPT, {"SLEEPS": "20", **env}, {"token": b"secret", "checks/a.sh": b""}
    )
    return model.StartOrder(model.DroneId(f"main-ab12-{serial}"), KIND, 600.0, 5.0, boot)


def main(state: Path) -> None:
    """Print the lives of five drones through A-REX, and the log that the first has left."""
    start_arex(state)
    token = start_issuer(state)
    condor = Condor.fetched(os.environ["SUITE"])
    with htcondor.lab_directory("arc") as root:
        access = Pool(root, condor, "ap", "COLLECTOR NEGOTIATOR SCHEDD", ACCESS)
        file = root / "arc.token"
        file.touch(mode=0o600)
        file.write_text(f"{token}\n")
        access.account.give(file)
        with running(access):
            site = site_of(access, file, root / "work")
            orders = [*map(_order, (1, 2, 3)), _order(4, CODE="3"), _order(5, SLEEPS="600")]
            log = root / "work/arc/outputs/main-ab12-1/drone.log"
            lives = asyncio.run(drones_lives(site, orders, orders[-1].drone_id, log.exists))
            print(json.dumps({"lives": lives, "log": log.read_text()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
