"""A hostile job: it tries to read each file, environment and socket below directories, and of processes of others.

It prints what it could read, as JSON. Its arguments are directories of the controller.
"""

import json
import os
import pwd
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

NAMES = """controller.token drones.key provisioner.yaml local.yaml provisioner.db provisioner.db-wal provisioner.db-shm
provisioner.lock web.sock provisioner.sock controller.log var/provisioner.db"""
TOKEN = re.compile(rb"eyJ[\w-]{20,}\.eyJ[\w-]+\.[\w-]{20,}")


def readable(path: Path) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(file, 1 << 20) or b"empty"
    except OSError:  # it is open all the same
        return b"unreadable"
    finally:
        os.close(file)


def reachable(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(path)
        except OSError:
            return False
        return True


own, processes, tokens, others = os.getuid(), [], [], 0
paths = {Path(place) / name for place in sys.argv[1:] for name in NAMES.split()}
for place in sys.argv[1:]:
    paths |= {Path(top) / name for top, _, names in os.walk(place) for name in names}
for process in Path("/proc").glob("[0-9]*"):
    try:
        foreign = process.stat().st_uid != own
    except OSError:
        continue
    inside = [process / "environ", process / "mem", process / "cwd"]
    with suppress(OSError):
        inside += [*(process / "fd").iterdir()]
    if foreign:
        others += 1
        processes += [str(path) for path in inside if readable(path)]
    else:
        # other drones and other jobs, which have the account of this one: a token must not be there
        tokens += [
            str(path) for path in inside if path.name != "mem" and TOKEN.search(readable(path))
        ]
for top, _, names in os.walk(Path.cwd().anchor + "var/lib/gpu-drones"):
    tokens += [f"{top}/{name}" for name in names if TOKEN.search(readable(Path(top) / name))]
sockets = {
    line.split()[7]
    for line in Path("/proc/net/unix").read_text().splitlines()
    if len(line.split()) == 8
}
paths_of_sockets = [each for each in sockets if each.startswith(tuple(sys.argv[1:]))]
seen = {
    "account": pwd.getpwuid(own).pw_name,
    "files": sorted(str(path) for path in paths if readable(path)),
    "sockets": [each for each in paths_of_sockets if reachable(each)],
    "processes": processes,
    "tokens": tokens,
    "others": others,
    "tried": len(paths) + others + len(sockets),
}
print(json.dumps(seen))
