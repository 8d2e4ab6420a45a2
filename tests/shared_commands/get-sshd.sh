#!/bin/sh
# get-sshd.sh: a real OpenSSH server for the tests, without root, container or change to this host.
#
# Prints the directory that holds it (usr/sbin/sshd and the rest) as its only line on stdout.
#
# How: apt's own client, with a private state directory, fetches the packages of this host's own release; dpkg-deb
# unpacks them. libnss-wrapper comes along: with it the server believes a passwd file of the test's, so that it needs
# neither root nor an account of its own, and the account's home is a directory of the test.
#
# Cached as tests/labs/debian.sh says.
. "$(dirname "$0")/../labs/debian.sh"

cache=$(cache_directory)
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-${ID:-unknown}}")
prefix=$cache/sshd-$release

done_already() { [ -x "$prefix/usr/sbin/sshd" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb
begin_build "$cache" sshd
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/tree"

# Unlike debian.sh's: with this host's own sources, whatever system it is.
apt() {
    apt-get -q -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Dir::State::status=/dev/null \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3 "$@" >>"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "apt-get $1 failed: is a mirror of $release within reach?"; }
}
say "fetching the OpenSSH server of $release (1 MB, once)"
apt update
cd "$work/debs"
apt download openssh-server libwrap0 libnss-wrapper
for package in *.deb; do dpkg-deb -x "$package" "$work/tree"; done
cd "$cache"

# From /usr merged with / on some releases, and apart on others.
library=$(find "$work/tree" -name 'libwrap.so.0' | head -n 1)
wrapper=$(find "$work/tree" -name 'libnss_wrapper.so' | head -n 1)
[ -n "$library" ] && [ -n "$wrapper" ] || fail "the packages of $release hold no libwrap.so.0 or libnss_wrapper.so"
mkdir "$work/tree/lib-sshd"
cp -a "$(dirname "$library")"/libwrap.so.0* "$wrapper" "$work/tree/lib-sshd/"
missing=$(LD_LIBRARY_PATH=$work/tree/lib-sshd ldd "$work/tree/usr/sbin/sshd" | grep 'not found' || true)
[ -z "$missing" ] || fail "the server needs what this host has not: $missing"

rm -rf "$prefix"
mv -T "$work/tree" "$prefix"
echo "$prefix"
