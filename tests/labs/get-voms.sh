#!/bin/sh
# get-voms.sh: VOMS's library, which HTCondor loads to read the attributes of proxies, and `voms-proxy-fake`, which makes
# proxies without a VOMS server, of this host's own Debian release. No change to this host.
#
# Prints the directory, which holds bin/voms-proxy-fake and lib/libvomsapi.so.1, as its only line on stdout.
#
# Cached as debian.sh says. Needs apt-get and dpkg-deb.
. "$(dirname "$0")/debian.sh"

[ $# -eq 0 ] || fail "usage: get-voms.sh"
host_release
cache=$(cache_directory)
prefix=$cache/voms-$release
done_already() { [ -x "$prefix/bin/voms-proxy-fake" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb tar
begin_build "$cache" "voms-$release"
main_archive_of "$release"
say "fetching VOMS of Debian $release (less than 1 MB, once)"
apt update
apt install --download-only voms-clients
unpack_packages "$work/tree"
# without the libc beside them, which would be HTCondor's as well
mkdir -p "$work/kept/bin" "$work/kept/lib"
mv "$work/tree/usr/bin/voms-proxy-fake" "$work/kept/bin/"
mv "$work"/tree/usr/lib/*-linux-*/libvomsapi.so.1* "$work/kept/lib/"
rm -rf "$prefix"
mv -T "$work/kept" "$prefix"
done_already || fail "the packages have no voms-proxy-fake"
echo "$prefix"
