"""Commands of an administrator on the packages, in a root without a network; run there by ``test_upgrade.py``.

Standard library only. Drones are those of a site ``local`` with declared GPUs and the embedded queue.
Each has a job.
"""

import json
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

DRONES = 20
RECORD = Path("/var/lib/provisioner/provisioner.db")
MIGRATION = "lib/python3.11/site-packages/provisioner/store/migrations/9999_next.sql"
HOME = Path("/opt/gpu-drone-provisioner")
CONTROLLER = f"""
controller: pool
store: {{path: {RECORD}}}
overlay: {{adapter: embedded, options: {{path: /var/lib/provisioner/queue.db, lease: 60s}}}}
sites: [local.yaml]
policy: {{interval: 2s, active_interval: 250ms, max_drones: {DRONES}, overlay_max_age: 60s, slot_max_age: 5min}}
"""
SITE = f"""
site: local
adapter: local
limits: {{max_drones: {DRONES}, max_gpus: {DRONES}, max_pending: {DRONES}, max_starts_per_tick: {DRONES}}}
timeouts: {{view_max_age: 2min, poll_deadline: 60s, order_deadline: 60s, missing: 1min, booting: 5min}}
types: {{gpu: {{gpus: 1, vram: 40 GiB, capability: 8.0, driver: "12.4", cpus: 1, memory: 64 MiB, disk: 1 MiB}}}}
options:
  root: /var/lib/provisioner/drones
  same_account: true
  cpus: {DRONES}
  gpus: [{{count: {DRONES}, model: A100-SXM4-40GB, vram: 40 GiB, capability: 8.0}}]
"""


def provisioner(*words):
    ran = subprocess.run(as_service("provisioner", *words), capture_output=True, text=True)
    return ran.returncode, ran.stdout, ran.stderr


def as_service(*words):
    return ["setpriv", "--reuid", "provisioner", "--regid", "provisioner", "--init-groups", *words]


def start():
    command = as_service("sh", "-c", "exec provisioner run >>/var/lib/provisioner/log 2>&1")
    return subprocess.Popen(command, start_new_session=True)


def stop(controller):
    """End the controller alone, as its unit does (KillMode=process)."""
    controller.send_signal(signal.SIGTERM)
    assert controller.wait(90) == 0


def busy():
    """Return the drones with jobs, and the processes of their jobs."""
    code, out, _ = provisioner("drones", "-o", "json")
    drones = json.loads(out)["items"] if code == 0 else []
    names = subprocess.run(["pgrep", "-x", "sleep"], capture_output=True, text=True).stdout.split()
    return sorted(each["id"] for each in drones if each["state"] == "busy"), sorted(names)


def wait_for(what, met, limit_s=180):
    latest = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < latest, (
            f"{what}: {busy()}, {Path('/var/lib/provisioner/log').read_text()[-3000:]}"
        )
        time.sleep(1)


def ticks():
    with sqlite3.connect(f"file:{RECORD}?mode=ro", uri=True) as sql:
        return int(sql.execute("SELECT value FROM meta WHERE key = 'tick'").fetchone()[0])


def wait_for_ticks():
    """Wait until the controller has planned several times."""
    before = ticks()
    wait_for("ticks", lambda: ticks() >= before + 3)


def schema(path=RECORD):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as sql:
        return sql.execute("PRAGMA user_version").fetchone()[0]


def copies():
    return sorted(RECORD.parent.glob("provisioner.db.schema-*"))


def dpkg(*words):
    ran = subprocess.run(["dpkg", *words], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


dpkg("-i", "/root/before.deb")
Path("/etc/provisioner/provisioner.yaml").write_text(CONTROLLER)
Path("/etc/provisioner/local.yaml").write_text(SITE)
example = Path("/etc/provisioner/examples/local.yaml")
example.write_text("# changed\n")
controller = start()
wait_for("the record", RECORD.exists)
code, out, err = provisioner(
    "submit", "--count", str(DRONES), "--memory", "32 MiB", "--", "sleep", "100000"
)
assert code == 0, err
wait_for("drones", lambda: len(busy()[0]) == DRONES)
drones, jobs = busy()
assert len(jobs) == DRONES
old_schema = schema()

# An upgrade with a migration, below a running controller. systemd, which does not run here, would restart it.
dpkg("-i", "/root/now.deb")
(HOME / MIGRATION).write_text("CREATE TABLE next (x INTEGER);")
stop(controller)
assert busy()[1] == jobs
controller = start()
wait_for("the migration", lambda: schema() == old_schema + 1)
wait_for_ticks()
assert busy() == (drones, jobs)
assert [each.name for each in copies()] == [f"provisioner.db.schema-{old_schema}"]
assert schema(copies()[0]) == old_schema
made = copies()[0].stat().st_mtime_ns
assert example.read_text() == "# changed\n"
stop(controller)
controller = start()
wait_for_ticks()
assert copies()[0].stat().st_mtime_ns == made, "the second start made a copy again"
stop(controller)

# Removal and installation.
told = dpkg("-r", "gpu-drone-provisioner")
assert "the record stays in /var/lib/provisioner" in told, told
left = [path for path in HOME.rglob("*") if path.is_file()]
assert [path.name for path in left] == ["9999_next.sql"], left
assert busy()[1] == jobs and RECORD.exists()
dpkg("-i", "/root/now.deb")
controller = start()
wait_for_ticks()
assert busy() == (drones, jobs)
stop(controller)

# A downgrade is refused, with the command that goes back.
(HOME / MIGRATION).unlink()
dpkg("-i", "/root/before.deb")
code, out, err = provisioner("run", "--once")
assert code != 0 and "restore the copy" in err, err
subprocess.run(re.findall("`(cd .*?)`", err)[0], shell=True, check=True)
assert RECORD.owner() == "provisioner" and schema() == old_schema
controller = start()
wait_for_ticks()
assert busy() == (drones, jobs)
stop(controller)
print(f"{len(drones)} drones went on")
