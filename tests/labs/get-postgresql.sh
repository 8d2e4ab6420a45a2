#!/bin/sh
# get-postgresql.sh SUITE: Debian's own PostgreSQL for the tests, without root or change to this host.
#
# Prints the directory with initdb, postgres, pg_ctl, pg_dump and the others as its only line on stdout. SUITE is a
# Debian release: bookworm, which has PostgreSQL 15.
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
programs=usr/lib/postgresql/15/bin

done_already() { [ -x "$prefix/$programs/initdb" ]; }
if done_already; then echo "$prefix/$programs"; exit 0; fi

need apt-get dpkg-deb
find_patchelf
begin_build "$cache" "postgresql-$1"
main_archive_of "$1"

say "fetching PostgreSQL 15 of Debian $suite (about 35 MB, once)"
apt update
mkdir "$work/debs" "$work/tree"
cd "$work/debs"
apt download postgresql-15 postgresql-client-15 libpq5 libc6 libicu72 libxml2 libxslt1.1 libldap-2.5-0 libsasl2-2 \
    libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libcom-err2 libkeyutils1 libssl3 zlib1g liblz4-1 libzstd1 \
    libsystemd0 libcap2 libgcrypt20 libgpg-error0 libpam0g libaudit1 libcap-ng0 liblzma5 libstdc++6 libgcc-s1 \
    libuuid1 libreadline8 libtinfo6
for package in *.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
cd "$work"
mkdir -p tree/usr/share
cp -a unpacked/usr/lib tree/usr/
cp -a unpacked/lib/. tree/usr/lib/
cp -a unpacked/usr/share/postgresql tree/usr/share/
rm -rf tree/usr/lib/*-linux-*/gconv

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
