#!/bin/sh
# get-postgresql.sh SUITE: Debian's own PostgreSQL for the tests, without root or change to this host.
#
# Prints the directory with initdb, postgres, pg_ctl, pg_dump and the others as its only line on stdout. SUITE is a
# Debian release: bookworm, which has PostgreSQL 15, or trixie, which has 17.
#
# The programs run with the loader and libraries of their release: patchelf points them there, as in get-condor.sh.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run PostgreSQL "$@"

[ $# -eq 1 ] || fail "usage: get-postgresql.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/postgresql-$1
case $1 in bookworm) version=15 size=35 ;; *) version=17 size=95 ;; esac
programs=usr/lib/postgresql/$version/bin

done_already() { [ -x "$prefix/$programs/initdb" ]; }
if done_already; then echo "$prefix/$programs"; exit 0; fi

need apt-get dpkg-deb
find_patchelf
begin_build "$cache" "postgresql-$1"
main_archive_of "$1"

say "fetching PostgreSQL $version of Debian $suite (about $size MB, once)"
apt update
mkdir "$work/tree"
apt install --download-only "postgresql-$version"
for package in "$work"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
cd "$work"
mkdir -p tree/usr/share
cp -a unpacked/usr/lib tree/usr/
if [ -d unpacked/lib ]; then cp -a unpacked/lib/. tree/usr/lib/; fi
cp -a unpacked/usr/share/postgresql tree/usr/share/
rm -rf tree/usr/lib/*-linux-*/gconv tree/usr/lib/*-linux-*/perl* tree/usr/lib/python*

loader=$(cd tree/usr/lib && find . -name 'ld-linux*.so.*' | sort | tail -n 1)
[ -n "$loader" ] || fail "no loader in libc6 of $suite"
libraries=$prefix/usr/lib/$(dirname "$loader" | sed 's|^\./*||')
for program in "tree/$programs"/*; do
    [ "$(head -c 4 "$program" | tail -c 3)" = ELF ] || continue
    # The paths that hold after the renaming below.
    "$patchelf" --set-interpreter "$prefix/usr/lib/${loader#./}" --force-rpath --set-rpath "$libraries" "$program"
done
rm -rf "$prefix"
mv -T tree "$prefix"
"$prefix/$programs/postgres" --version >&2 || fail "the unpacked postgres does not start"
echo "$prefix/$programs"
