"""Runs of Puppet or Ansible on this host: install, change, break, repair; run in a root by ``test_managed.py``.

Standard library only. There is no systemd in the root, so a program ``systemctl`` starts and reloads the controller
as its unit does. All else is real: package, accounts, files, ``provisioner check``, the controller.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

CONTROLLER = """
controller: pool
store: {path: /var/lib/provisioner/provisioner.db}
overlay: {adapter: embedded, options: {path: /var/lib/provisioner/queue.db, lease: 60s}}
sites: [local.yaml]
"""
SITE = """
site: local
adapter: local
limits: {max_drones: 4, max_gpus: 4}
types: {gpu: {gpus: 1, vram: 40 GiB, capability: 8.0, driver: "12.4", cpus: 1, memory: 64 MiB, disk: 1 MiB}}
options:
  root: /var/lib/provisioner/drones
  same_account: true
  cpus: 4
  gpus: [{count: 4, model: A100-SXM4-40GB, vram: 40 GiB, capability: 8.0}]
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>/root/systemctl.log
verb= unit=
for word; do
    case $word in
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$word; else unit=${word%.service}; fi ;;
    esac
done
state=inactive
pid=$(cat "/run/$unit.pid" 2>/dev/null) && kill -0 "$pid" && state=active
case $verb in
is-active) echo $state; [ $state = active ] ;;
is-enabled) [ -e "/root/enabled.$unit" ] && echo enabled ;;
enable) touch "/root/enabled.$unit" ;;
start)
    cd /var/lib/provisioner
    setpriv --reuid provisioner --regid provisioner --init-groups \\
        provisioner run -c /etc/provisioner/provisioner.yaml >>/root/controller.log 2>&1 &
    echo $! >"/run/$unit.pid" ;;
reload) kill -HUP "$pid" ;;
show) printf 'LoadState=loaded\\nActiveState=%s\\n' $state ;;
esac
"""
PUPPET = """
class { 'gpu_drone_provisioner':
  configuration => '/root/site',
  tokens        => { 'controller' => { 'source' => '/root/controller.token' } },
  package_file  => '/root/new.deb',
}
"""
ANSIBLE = """
- hosts: localhost
  roles:
    - role: gpu_drone_provisioner
      gpu_drone_provisioner_configuration: /root/site
      gpu_drone_provisioner_tokens: {controller: /root/controller.token}
      gpu_drone_provisioner_package_file: /root/new.deb
"""
ETC = Path("/etc/provisioner")
GIVEN = Path("/root/site")


def apply_puppet():
    command = ("puppet", "apply", "--detailed-exitcodes", "--modulepath", "/root", "/root/site.pp")
    ran = subprocess.run(command, capture_output=True, text=True)
    return {0: "same", 2: "changed"}.get(ran.returncode, "failed"), ran.stdout + ran.stderr


def apply_ansible():
    command = ("ansible-playbook", "-c", "local", "-i", "localhost,", "/root/site.yml")
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        return "failed", ran.stdout + ran.stderr
    changes = int(re.search(r"changed=(\d+)", ran.stdout)[1])
    return "changed" if changes else "same", ran.stdout


def expect(result, text=""):
    found, told = {"puppet": apply_puppet, "ansible": apply_ansible}[sys.argv[1]]()
    assert found == result and text in told, f"{found} instead of {result}:\n{told}"


def given(**files):
    for old in GIVEN.glob("*"):
        old.unlink()
    for name, text in files.items():
        (GIVEN / f"{name}.yaml").write_text(text)


def installed():
    return {path.stem: path.read_text() for path in ETC.glob("*.yaml")}


def requests():
    """Return what systemd was asked to do, since the last call."""
    log = Path("/root/systemctl.log")
    asked = re.findall(r"^(?:\S+ )*?(start|reload|enable)\b", log.read_text(), re.MULTILINE)
    log.write_text("")
    return asked


def reloads():
    return Path("/root/controller.log").read_text().count("config.reloaded")


def wait_for(met):
    latest = time.monotonic() + 60
    while not met():
        assert time.monotonic() < latest, Path("/root/controller.log").read_text()[-3000:]
        time.sleep(0.5)


Path("/usr/bin/systemctl").unlink()
Path("/usr/bin/systemctl").write_text(SYSTEMCTL)
Path("/usr/bin/systemctl").chmod(0o755)
Path("/root/site.pp").write_text(PUPPET)
Path("/root/site.yml").write_text(ANSIBLE)
Path("/root/controller.token").write_text("secret")
GIVEN.mkdir()

given(provisioner=CONTROLLER, local=SITE)
expect("changed")
token = ETC / "tokens/controller"
assert (token.stat().st_mode & 0o777, token.owner()) == (0o400, "provisioner")
config = ETC / "provisioner.yaml"
assert (config.stat().st_mode & 0o777, config.owner(), config.group()) == (
    0o640,
    "root",
    "provisioner",
)
assert installed() == {"provisioner": CONTROLLER, "local": SITE}
assert sorted(requests()) == ["enable", "start"]
wait_for(lambda: Path("/var/lib/provisioner/provisioner.db").exists())

expect("same")
assert requests() == []

more = CONTROLLER + "policy: {max_drones: 3}\n"
given(provisioner=more, local=SITE)
expect("changed")
assert requests() == ["reload"]
wait_for(lambda: reloads() == 1)

# A site file with a mistake: no run takes it, neither the first nor the next one.
given(provisioner=more, local=SITE.replace("max_gpus: 4", "max_gpus: many"))
for _ in range(2):
    expect("failed", "max_gpus")
    assert installed() == {"provisioner": more, "local": SITE}
    assert requests() == []

# Repaired, in a file of another name: the old one goes.
renamed = {"provisioner": more.replace("local.yaml", "cluster.yaml"), "cluster": SITE}
given(**renamed)
expect("changed")
assert installed() == renamed
assert requests() == ["reload"]
wait_for(lambda: reloads() == 2)
expect("same")
print("managed")
