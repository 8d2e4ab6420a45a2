#!/bin/sh
# get-apache.sh SUITE: Apache with mod_auth_openidc for the tests of the web service, without root or change to this host.
#
# Prints the directory that it is in as its only line on stdout: `apache2` is a script that starts the server with the
# libraries of its release, `modules` has its modules. SUITE is a Debian release, such as bookworm or trixie.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run Apache "$@"

[ $# -eq 1 ] || fail "usage: get-apache.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/apache-$1

done_already() { [ -x "$prefix/apache2" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb
begin_build "$cache" "apache-$1"
main_archive_of "$1"

say "fetching Apache with mod_auth_openidc of Debian $suite (about 25 MB, once)"
apt update
apt install --download-only apache2-bin libapache2-mod-auth-openidc media-types
tree=$work/tree
mkdir "$tree"
for package in "$work"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$tree"; done
rm -rf "$tree/usr/share/doc" "$tree/usr/share/locale" "$tree/usr/share/man"

# With the loader and libraries of its release: this host may have older ones, or none.
root=$prefix/tree
cat >"$work/apache2" <<END
#!/bin/sh
arch=\$(echo $root/usr/lib/*-linux-gnu | cut -d' ' -f1)
arch=\$(basename "\$arch")
for loader in $root/lib64/ld-*.so.* $root/usr/lib64/ld-*.so.* $root/lib/\$arch/ld-*.so.* $root/usr/lib/\$arch/ld-*.so.*; do
    [ -x "\$loader" ] && break
done
exec "\$loader" --library-path "$root/lib/\$arch:$root/usr/lib/\$arch" "$root/usr/sbin/apache2" "\$@"
END
chmod +x "$work/apache2"
ln -s tree/usr/lib/apache2/modules "$work/modules"
mkdir "$work/made"
mv "$tree" "$work/apache2" "$work/modules" "$work/made/"
rm -rf "$prefix"
mv -T "$work/made" "$prefix"
echo "$prefix"
