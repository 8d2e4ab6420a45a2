"""The deb and the RPM: the same content, installed without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packages.conftest import CHECKOUT, inside, run

HOME = "/opt/gpu-drone-provisioner"
OURS = (HOME, "/etc/provisioner", "/usr/share/gpu-drone-provisioner")
IMPORTS = "aiohttp, asyncssh, bcrypt, classad2, htcondor2, jinja2, jwt, prometheus_client, tenacity"
DEMO = f"{HOME}/lib/python$VERSION/site-packages/provisioner/cli/demo_config"


class Entry(NamedTuple):
    """File of a package."""

    mode: str
    owner: str
    group: str
    link: str


def entries_of_deb(deb: Path) -> dict[str, Entry]:
    found = {}
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as tar,
        tarfile.open(fileobj=tar.stdout, mode="r|") as members,
    ):
        for each in members:
            name = each.name.removeprefix(".")
            kind = "d" if each.isdir() else "l" if each.issym() else "-"
            if kind != "d" or name.startswith(OURS):
                link = each.linkname if kind == "l" else ""
                found[name] = Entry(f"{kind}{each.mode:o}", each.uname, each.gname, link)
    return found


def entries_of_rpm(rpm: Path) -> dict[str, Entry]:
    form = (
        r"[%{FILENAMES}\t%{FILEMODES:octal}\t%{FILEUSERNAME}\t%{FILEGROUPNAME}\t%{FILELINKTOS}\n]"
    )
    found = {}
    for line in run("rpm", "-qp", "--qf", form, rpm).splitlines():
        name, mode, owner, group, link = line.split("\t")
        kind = {0o04: "d", 0o12: "l", 0o10: "-"}[int(mode, 8) >> 12]
        if kind != "d" or name.startswith(OURS):
            found[name] = Entry(f"{kind}{int(mode, 8) & 0o7777:o}", owner, group, link)
    return found


def test_both_have_the_same_files_owners_and_scripts(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    deb, rpm = packages["deb"], packages["rpm"]
    in_deb, in_rpm = entries_of_deb(deb), entries_of_rpm(rpm)
    assert in_deb.keys() == in_rpm.keys()
    assert in_deb == in_rpm
    assert {(each.owner, each.group) for each in in_deb.values()} == {("root", "root")}

    run("dpkg-deb", "-e", deb, tmp_path)
    config = set((tmp_path / "conffiles").read_text().split())
    flags = run("rpm", "-qp", "--qf", r"[%{FILENAMES} %{FILEFLAGS:fflags}\n]", rpm).splitlines()
    assert config == {line.split()[0] for line in flags if line.endswith(" cn")} != set()
    assert config == {
        name for name in in_deb if name.startswith("/etc/") and in_deb[name].mode[0] != "d"
    }

    common = (CHECKOUT / "packaging/scripts.sh").read_text().strip()
    for of_deb, of_rpm in (("postinst", "POSTIN"), ("prerm", "PREUN"), ("postrm", "POSTUN")):
        assert common in (tmp_path / of_deb).read_text()
        assert common in run("rpm", "-qp", "--qf", f"%{{{of_rpm}}}", rpm)


def test_the_rpm_requires_one_python_of_several(packages: dict[str, Path]) -> None:
    needs = run("rpm", "-qp", "--requires", packages["rpm"]).splitlines()
    own = {each for each in needs if not each.startswith("rpmlib(")}
    assert own == {"(python3.11 or python3.12 or python3.13)", "systemd", "/bin/sh"}


def test_programs_name_the_python_of_the_distribution(packages: dict[str, Path]) -> None:
    found = entries_of_deb(packages["deb"])
    programs = {name: each.link for name, each in found.items() if name.startswith(f"{HOME}/bin/")}
    assert programs.pop(f"{HOME}/bin/provisioner") == ""
    assert programs == {
        f"{HOME}/bin/{(link := f'python3.{n}')}": f"/usr/bin/{link}" for n in (11, 12, 13)
    }
    assert not [name for name in found if "pyslurm" in name or "/site-packages/bin/" in name]


DEB_STORY = f"""
dpkg -i /root/new.deb
stat -c '%n %A %U %G' /etc/provisioner /etc/provisioner/tokens /var/lib/provisioner
provisioner --version
python3 -c 'import sys; print("python", sys.version)'
{HOME}/bin/python3.11 -c 'import {IMPORTS}'
mkdir /tmp/demo && cp {DEMO.replace("$VERSION", "3.11")}/*.yaml /tmp/demo
provisioner check -c /tmp/demo/provisioner.yaml
setpriv --reuid provisioner --regid provisioner --init-groups provisioner demo
man provisioner-drones | head -20
for unit in provisioner provisioner-web provisioner-backup; do
    systemd-analyze verify /usr/lib/systemd/system/$unit.service
    systemd-analyze security --offline=true --threshold=30 --no-pager /usr/lib/systemd/system/$unit.service | tail -1
done
"""


def test_the_deb_runs_in_a_fresh_root_without_a_network(
    packages: dict[str, Path], root: Path
) -> None:
    shutil.copy(packages["deb"], root / "root/new.deb")
    told = inside(root, DEB_STORY)
    assert "/etc/provisioner drwxr-x--- root provisioner" in told
    assert "/etc/provisioner/tokens drwx------ provisioner provisioner" in told
    assert "/var/lib/provisioner drwxrwx--- provisioner provisioner" in told
    commit = run("git", "-C", CHECKOUT, "rev-parse", "HEAD")[:8]
    assert re.search(rf"\(commit {commit}(-dirty)?\)", told)
    assert "PROVISIONER-DRONES(1)" in told
    levels = re.findall(r"exposure level for (\S+): ([\d.]+)", told)
    assert len(levels) == 3 and all(float(level) <= 3.0 for _, level in levels), levels


COMPLETION = """
dpkg -i --force-depends /root/new.deb >/dev/null
export PROVISIONER_STORE=/root/record.db
cat >/root/bash.sh <<'END'
. /usr/share/bash-completion/bash_completion
_completion_loader provisioner
COMP_WORDS=(provisioner "$@"); COMP_CWORD=$#
_provisioner
echo "bash: ${COMPREPLY[*]}"
END
cat >/root/zsh.sh <<'END'
autoload -Uz compinit && compinit -u
compadd() { [ "$1" = -a ] && echo "zsh: ${(P)2}" }
words=(provisioner "$@"); CURRENT=$#words
_provisioner
END
bash /root/bash.sh dr
bash /root/bash.sh drones drain kit
bash /root/bash.sh drones --state b
for shell in "bash /root/bash.sh" "zsh /root/zsh.sh"; do
    $shell sites reset ''
    $shell explain job ''
    $shell explain class ''
done
"""


def test_shells_complete_verbs_and_names_on_record(
    packages: dict[str, Path], root: Path, filled_record: Path
) -> None:
    shutil.copy(packages["deb"], root / "root/new.deb")
    shutil.copy(filled_record, root / "root/record.db")
    told = inside(root, COMPLETION).splitlines()
    assert told[:3] == [
        "bash: drones",
        "bash: kit-ab12-2 kit-ab12-1 kit-ab12-3 kit-ab12-4",
        "bash: booting busy",
    ]
    for shell, shown in (("bash", told[3:6]), ("zsh", told[6:9])):
        sites, jobs, classes = shown
        assert sites.startswith(f"{shell}: topas horeka --type")
        assert jobs.startswith(f"{shell}: 204.0 204.3 207.1")
        assert classes.startswith(f"{shell}: 7 9 11 --output")


RPM_STORY = f"""
provisioner --version
{HOME}/bin/python$VERSION -c 'import {IMPORTS}'
provisioner demo
"""


def pythons(version: str) -> list[str]:
    """Return the places of interpreters of a version: those on the PATH, and those of pyenv."""
    of_pyenv = Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3")
    return [f"python{version}", *map(str, of_pyenv)]


def prefix_of(python: str) -> str | None:
    """Return where the library of an interpreter is; None if there is no such interpreter."""
    tell = [python, "-c", "import sys; print(sys.base_prefix)"]
    try:
        return subprocess.run(tell, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_rpm_runs_with_this_python(packages: dict[str, Path], root: Path, version: str) -> None:
    """In a root of Debian, whose empty RPM database knows no dependency: no distribution of RPMs is tried."""
    python = root / "usr/bin/python3.11"
    if version != "3.11":
        # Debian has no second Python; one from elsewhere is put where that of EL 9 is.
        prefix = next(filter(None, map(prefix_of, pythons(version))), None)
        if prefix is None:
            pytest.skip(f"no Python {version} on this host")
        (root / prefix[1:]).mkdir(parents=True)
        run("cp", "-a", f"{prefix}/.", root / prefix[1:])
        (root / f"usr/bin/python{version}").symlink_to(f"{prefix}/bin/python{version}")
        python.unlink()
    install = ("rpm", "--root", root, "--nodeps", "-i", packages["rpm"])
    told = run("unshare", "--net", *install)
    assert "error" not in told
    assert "(commit " in inside(root, f"VERSION={version}\n{RPM_STORY}")
