#!/bin/sh
# get-prometheus.sh SUITE: Debian's own prometheus and promtool for the tests, without root or change to this host.
#
# Prints the directory that holds both programs as its only line on stdout. SUITE is a Debian release: bookworm, whose
# programs run on later releases as well.
#
# With --optional it says why on stderr, and exits with 0, where they cannot be had: the tests that need them are
# skipped. Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run Prometheus "$@"

[ $# -eq 1 ] || fail "usage: get-prometheus.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/prometheus-$1

done_already() { [ -x "$prefix/promtool" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb
begin_build "$cache" "prometheus-$1"
main_archive_of "$1"

say "fetching prometheus of Debian $suite (60 MB, once)"
apt update
mkdir "$work/debs" "$work/unpacked" "$work/tree"
cd "$work/debs"
apt download prometheus
dpkg-deb -x prometheus_*.deb "$work/unpacked"
for program in prometheus promtool; do
    "$work/unpacked/usr/bin/$program" --version >/dev/null 2>&1 || fail "$program of Debian $suite does not run here"
    cp "$work/unpacked/usr/bin/$program" "$work/tree/"
done
rm -rf "$prefix"
mv -T "$work/tree" "$prefix"
echo "$prefix"
