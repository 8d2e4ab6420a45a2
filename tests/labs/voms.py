"""Proxies with attributes of a VO, by VOMS's own programs and without a VOMS server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.labs.htcondor import fetched

VO = "atlas"
FQAN = f"/{VO}/Role=pilot/Capability=NULL"
READS_VOMS = "USE_VOMS_ATTRIBUTES = True\n"
"""Configuration of a schedd that reads the attributes of proxies: HTCondor's default is False."""
_EXTENSIONS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid:always\n"
_LIFE_MIN = 60


class Authority:
    """A certificate authority, a member of a VO, and the host that signs for the VO."""

    def __init__(self, directory: Path) -> None:
        self._programs = fetched("get-voms.sh")
        self.directory = directory
        (directory / "certificates").mkdir(parents=True)
        (directory / f"vomsdir/{VO}").mkdir(parents=True)
        lsc = directory / f"vomsdir/{VO}/voms.test.lsc"
        lsc.write_text("/DC=test/CN=voms\n/DC=test/CN=CA\n")
        (directory / "extensions").write_text(_EXTENSIONS)
        new = ("req", "-newkey", "rsa:2048", "-nodes")
        self._openssl(*new, "-x509", "-subj", "/DC=test/CN=CA", "-keyout", "ca.key", "-out", "ca")
        name = self._openssl("x509", "-hash", "-noout", "-in", "ca").strip()
        (directory / f"certificates/{name}.0").write_bytes((directory / "ca").read_bytes())
        sign = ("x509", "-req", "-CA", "ca", "-CAkey", "ca.key", "-CAcreateserial")
        for who in ("member", "voms"):
            subject = f"/DC=test/CN={who}"
            self._openssl(*new, "-subj", subject, "-keyout", f"{who}.key", "-out", f"{who}.request")
            files = ("-in", f"{who}.request", "-extfile", "extensions", "-out", who)
            self._openssl(*sign, *files)

    @property
    def env(self) -> Mapping[str, str]:
        """Environment of HTCondor's daemons and tools: the library, and whom it trusts."""
        return {
            "LD_LIBRARY_PATH": f"{self._programs}/lib",
            "X509_CERT_DIR": f"{self.directory}/certificates",
            "X509_VOMS_DIR": f"{self.directory}/vomsdir",
        }

    def proxy(self, name: str, left_min: int = _LIFE_MIN) -> Path:
        """Return a proxy that is good for so long; a negative time is over."""
        file = self.directory / name
        past = _LIFE_MIN - left_min
        life = ("-hours", "1", "-pastproxy", f"{past // 60}:{past % 60:02}")
        mine = ("-cert", "member", "-key", "member.key", "-certdir", "certificates")
        host = ("-hostcert", "voms", "-hostkey", "voms.key", "-uri", "voms.test:15000")
        vo = ("-voms", VO, "-fqan", FQAN)
        words = (*mine, *host, *vo, *life, "-rfc", "-out", str(file))
        self._run(f"{self._programs}/bin/voms-proxy-fake", *words)
        return file

    def _openssl(self, *words: str) -> str:
        return self._run("openssl", *words)

    def _run(self, *command: str) -> str:
        env = {**self.env, "PATH": "/usr/bin:/bin", "HOME": str(self.directory)}
        how = {"cwd": self.directory, "env": env, "capture_output": True, "text": True}
        return str(subprocess.run(command, check=True, timeout=60, **how).stdout)
