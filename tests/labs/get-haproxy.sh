#!/bin/sh
# get-haproxy.sh SUITE: HAProxy for the tests of inference services, without root or change to this host.
#
# Prints the directory that it is in as its only line on stdout: `haproxy` is a script that starts it with the libraries
# of its release. SUITE is a Debian release: bookworm has HAProxy 2.6, trixie 3.0.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run HAProxy "$@"

[ $# -eq 1 ] || fail "usage: get-haproxy.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/haproxy-$1

done_already() { [ -x "$prefix/haproxy" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb tar
begin_build "$cache" "haproxy-$1"
main_archive_of "$1"

say "fetching HAProxy of Debian $suite (about 10 MB, once)"
apt update
apt install --download-only haproxy
unpack_packages "$work/tree"

# With the loader and libraries of its release: this host may have older ones, or none.
mkdir -p "$work/made/lib"
cp -a "$work/tree/usr/sbin/haproxy" "$work/made/program"
find "$work/tree/usr/lib" -name '*.so*' ! -type d -exec cp -a {} "$work/made/lib/" \;
cat >"$work/made/haproxy" <<END
#!/bin/sh
for loader in $prefix/lib/ld-linux*.so.*; do [ -x "\$loader" ] && break; done
exec "\$loader" --library-path "$prefix/lib" "$prefix/program" "\$@"
END
chmod +x "$work/made/haproxy"
rm -rf "$prefix"
mv -T "$work/made" "$prefix"
echo "$prefix"
