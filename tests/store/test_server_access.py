"""Ways to a server: TLS with a password, and a pooler, which is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.store import StoreUnusableError
from provisioner.store.database import database_of, place_of
from tests.labs.htcondor import LabError, fetched
from tests.labs.ports import free_port
from tests.labs.postgresql import ACCOUNT, QUICK, PostgresServer, postgres_or_skip

PORT = free_port()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_or_skip(*QUICK, "listen_addresses=127.0.0.1", f"port={PORT}") as made:
        yield made


def test_a_server_with_tls_and_scram_is_used_and_a_wrong_secret_is_named(
    server: PostgresServer, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl for a certificate")
    certificate, key = server.data / "server.crt", server.data / "server.key"
    made = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost")
    words = (*made, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    for file in (certificate, key):
        file.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(file, ACCOUNT, ACCOUNT)
    to = (f"--host={server.directory}", f"--port={PORT}", "-Uprovisioner", "postgres")
    server.run("psql", *to, "-c", "ALTER SYSTEM SET ssl = on")
    role = "CREATE ROLE kit LOGIN PASSWORD 'hush'; GRANT CREATE ON DATABASE postgres TO kit"
    server.run("psql", *to, "-c", f"SET password_encryption = 'scram-sha-256'; {role}")
    rules = server.data / "pg_hba.conf"
    only = "hostssl all kit all scram-sha-256\nhost all kit all reject\n"
    rules.write_text(only + rules.read_text())
    server.stop("fast")
    server.start()
    checked = f"sslmode=verify-full&sslrootcert={shutil.copy(certificate, tmp_path / 'ca')}"
    for secret, mode, refusal in (
        ("hush", checked, ""),
        ("wrong", checked, "password authentication failed"),
        ("hush", "sslmode=disable", "no encryption"),
    ):
        (tmp_path / "secret").write_text(f"{secret}\n")
        url = f"postgresql://kit@127.0.0.1:{PORT}/postgres?{mode}"
        database = database_of(place_of(url, "kit", {"file": tmp_path / "secret"}))
        if refusal:
            with pytest.raises(StoreUnusableError, match=refusal):
                database.hold("kit", None)
        else:
            sql, _ = database.hold("kit", None)
            sql.close()


@pytest.mark.parametrize("mode", ["transaction", "session"])
@pytest.mark.parametrize("ignored", ["", "ignore_startup_parameters = options"])
def test_a_pooler_is_refused(
    server: PostgresServer, tmp_path: Path, mode: str, ignored: str
) -> None:
    try:
        program = fetched("get-patroni.sh", "bookworm") / "pgbouncer"
    except LabError as error:
        pytest.skip(f"no PgBouncer: {error}")
    port = free_port()
    file = server.directory / f"pgbouncer-{port}.ini"
    file.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={PORT} user=provisioner\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = {mode}\n"
        f"unix_socket_dir =\n{ignored}\n"
    )
    user = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
    command = [*(user if os.geteuid() == 0 else ()), str(program), str(file)]
    pooler = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    place = place_of(f"postgresql://provisioner@127.0.0.1:{port}/postgres", "kit")
    try:
        deadline = time.monotonic() + 20.0
        while True:
            with pytest.raises(StoreUnusableError) as refused:
                database_of(place).probe()
            if "Connection refused" not in str(refused.value):
                break
            assert time.monotonic() < deadline
    finally:
        pooler.kill()
        pooler.wait()
    why = "a pooler drops the settings" if ignored else "unsupported startup parameter: options"
    assert why in str(refused.value)
