#!/bin/sh
# get-sshd.sh: the OpenSSH server of this host's own Debian release for the tests, without root or change to this host.
#
# Prints the directory that holds sshd as its only line on stdout. Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"

host_release
cache=$(cache_directory)
prefix=$cache/own-sshd-$release  # tests/shared_commands/get-sshd.sh has another one

done_already() { [ -x "$prefix/sshd" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb
find_patchelf
begin_build "$cache" "own-sshd-$release"
main_archive_of "$release"

say "fetching openssh-server of Debian $release (500 kB, once)"
apt update
mkdir "$work/debs" "$work/unpacked" "$work/tree"
cd "$work/debs"
apt download openssh-server libwrap0
for package in *.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
cp "$work/unpacked/usr/sbin/sshd" "$work/tree/"
find "$work/unpacked" -name 'libwrap.so.*' -exec cp -a {} "$work/tree/" \;
"$patchelf" --set-rpath "$prefix" "$work/tree/sshd"
rm -rf "$prefix"
mv -T "$work/tree" "$prefix"
echo "$prefix"
