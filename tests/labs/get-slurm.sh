#!/bin/sh
# get-slurm.sh SUITE: a root directory with a real Slurm cluster's programs, for the live tests. No container, and no
# change to this host; needs root, because what is in it belongs to several accounts.
#
# Prints the directory as its only line on stdout. SUITE is a Debian release: trixie (Slurm 24.11), bookworm (22.05) or
# sid (26.05). In it: slurmctld, slurmd, slurmdbd with MariaDB, slurmrestd, munge, sshd, and what a worker node has.
#
# How: apt's own client resolves and fetches the packages as for an empty host, from the mirror that this host is set up
# with; each is unpacked by dpkg-deb, and no maintainer script runs. What those would have done and the lab needs is
# done below: accounts, alternatives, the linker's cache. Nothing writes to it later: labs put an overlay on top.
#
# Cached as debian.sh says. Needs apt-get, dpkg-deb and tar.
. "$(dirname "$0")/debian.sh"

[ $# -eq 1 ] || fail "usage: get-slurm.sh SUITE"
release_name "$1"
cache=$(cache_directory)
# The number is raised when this script puts something else there. (What is there may be in use by a lab.)
prefix=$cache/slurm-$1-2
done_already() { [ -x "$prefix/usr/sbin/slurmctld" ]; }
if done_already; then echo "$prefix"; exit 0; fi

[ "$(id -u)" = 0 ] || fail "run this as root: the root directory with Slurm has files of several accounts"
need apt-get dpkg-deb tar ldconfig unshare
begin_build "$cache" "slurm-$1"
main_archive_of "$1"

# --------------------------------------------------------------------------------------------------------- fetch
say "fetching Slurm of Debian $1 (about 90 MB, once)"
apt update
apt install --download-only \
    base-files base-passwd bash dash debianutils coreutils sed grep gawk findutils hostname login passwd util-linux \
    libc-bin tar gzip procps iproute2 python3 openssh-server openssh-client \
    munge slurm-wlm slurmdbd slurmrestd slurm-wlm-jwt-plugin slurm-wlm-mysql-plugin mariadb-server mariadb-client

unpack_packages "$work/tree" --exclude='./usr/lib/*/perl*' --exclude='./usr/share/perl*' \
    --exclude='./usr/bin/mariadb-test*'

# -------------------------------------------------------------------------------------------------------- set up
cd "$tree"
mkdir -p proc sys dev run tmp root home etc/slurm etc/munge var/lib/munge var/log/munge var/lib/mysql
chmod 1777 tmp
chmod 700 root

# account NAME UID HOME SHELL
account() {
    echo "$1:x:$2:$2::$3:$4" >>etc/passwd
    echo "$1:x:$2:" >>etc/group
}
cp usr/share/base-passwd/passwd.master etc/passwd
cp usr/share/base-passwd/group.master etc/group
account munge 101 /nonexistent /usr/sbin/nologin
account mysql 102 /nonexistent /usr/sbin/nologin
account sshd 103 /nonexistent /usr/sbin/nologin
account slurm 64030 /nonexistent /usr/sbin/nologin
account restd 2003 /nonexistent /usr/sbin/nologin
for person in drone:2001 owner:2002; do
    account "${person%:*}" "${person#*:}" "/home/${person%:*}" /bin/bash
    mkdir -m 700 "home/${person%:*}"
    chown "${person#*:}:${person#*:}" "home/${person%:*}"
done
# `*` is an account without a password; `!` would be a locked one, which sshd does not let in by key either.
cut -d: -f1 etc/passwd | sed 's/$/:*:::::::/' >etc/shadow
chmod 640 etc/shadow
[ -e etc/nsswitch.conf ] || cp usr/share/libc-bin/nsswitch.conf etc/nsswitch.conf

# What update-alternatives would have done.
for program in usr/sbin/slurm*-wlm usr/bin/*-wlm; do
    [ ! -e "$program" ] || ln -sf "$(basename "$program")" "${program%-wlm}"
done
[ -e usr/bin/awk ] || ln -s gawk usr/bin/awk
[ -e usr/bin/sh ] || ln -s dash usr/bin/sh
ldconfig -r .
chroot . slurmctld -V >"$work/version" 2>&1 || fail "the unpacked slurmctld does not start: $(cat "$work/version")"
say "it is $(cat "$work/version")"
# An empty database, which takes most of the time that a cluster needs to start.
chown 102:102 var/lib/mysql
unshare --mount sh -e -c 'mount -t proc proc proc; mount --rbind /dev dev; mount -t tmpfs tmpfs tmp
    chroot . mariadb-install-db --no-defaults --force --user=mysql --datadir=/var/lib/mysql --skip-test-db' >>"$work/log" 2>&1 ||
    { tail -n 30 "$work/log" >&2; fail "mariadb-install-db failed: does this host let root make namespaces?"; }

cd "$cache"
rm -rf "$prefix"
mv -T "$tree" "$prefix"
echo "$prefix"
