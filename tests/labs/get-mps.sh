#!/bin/sh
# get-mps.sh SUITE: NVIDIA's own nvidia-cuda-mps-control for the tests, without root or change to this host.
#
# Prints the directory that holds the program as its only line on stdout. SUITE is a Debian release that has the package
# `nvidia-cuda-mps` in its component non-free: trixie or sid. Its licence allows installing it, not passing it on: it is
# fetched from Debian's mirror by each host.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run nvidia-cuda-mps-control "$@"

[ $# -eq 1 ] || fail "usage: get-mps.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/mps-$1

done_already() { [ -x "$prefix/nvidia-cuda-mps-control" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb
begin_build "$cache" "mps-$1"
main_archive_of "$1" non-free

say "fetching nvidia-cuda-mps of Debian $suite (200 kB, once)"
apt update
mkdir "$work/debs" "$work/unpacked" "$work/tree"
cd "$work/debs"
apt download nvidia-cuda-mps
for package in *.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
for program in nvidia-cuda-mps-control nvidia-cuda-mps-server; do
    found=$(find "$work/unpacked" -name "$program" -type f | head -n 1)
    [ -n "$found" ] || fail "no $program in the package nvidia-cuda-mps of $suite"
    cp "$found" "$work/tree/"
done
rm -rf "$prefix"
mv -T "$work/tree" "$prefix"
echo "$prefix"
