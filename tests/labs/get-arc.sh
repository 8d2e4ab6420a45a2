#!/bin/sh
# get-arc.sh: a real ARC computing element (A-REX with its REST interface) for the live tests, of this host's own Debian
# release. No container, and no change to this host.
#
# Prints the directory as its only line on stdout. In it: A-REX, arcctl, and all that they need. A lab puts it over /usr
# in a mount namespace of its own, so it must be of the same release as the host.
#
# Cached as debian.sh says. Needs apt-get, dpkg-deb and tar.
. "$(dirname "$0")/debian.sh"

[ $# -eq 0 ] || fail "usage: get-arc.sh"
host_release
cache=$(cache_directory)
prefix=$cache/arc-$release
done_already() { [ -x "$prefix/usr/sbin/arched" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb tar
begin_build "$cache" "arc-$release"
main_archive_of "$release"
say "fetching ARC of Debian $release (about 50 MB, once)"
apt update
apt install --download-only nordugrid-arc-arex nordugrid-arc-arcctl openssl
unpack_packages "$work/tree"
rm -rf "$prefix"
mv -T "$work/tree" "$prefix"
done_already || fail "the packages have no A-REX"
echo "$prefix"
