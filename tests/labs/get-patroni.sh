#!/bin/sh
# get-patroni.sh SUITE: Debian's own Patroni, etcd and PgBouncer for the tests of a record in PostgreSQL, without root or
# change to this host.
#
# Prints the directory with patroni, etcd, etcdctl and pgbouncer as its only line on stdout. They are scripts that start
# the programs with the loader and libraries of their release. SUITE is a Debian release: bookworm has Patroni 3.0, etcd
# 3.4 and PgBouncer 1.18.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run Patroni "$@"

[ $# -eq 1 ] || fail "usage: get-patroni.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/patroni-$1

done_already() { [ -x "$prefix/patroni" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb tar
begin_build "$cache" "patroni-$1"
main_archive_of "$1"

say "fetching Patroni, etcd and PgBouncer of Debian $suite (about 45 MB, once)"
apt update
apt install --download-only patroni etcd-server etcd-client pgbouncer
unpack_packages "$work/tree"
rm -rf "$work/tree/var" "$work/tree/usr/share/perl" "$work/tree/usr/share/zoneinfo"

tree=$prefix/tree
script() {
    name=$1; shift
    cat >"$work/tree/$name" <<END
#!/bin/sh
for directory in $tree/usr/lib/*-linux-gnu; do [ -d "\$directory" ] && break; done
for loader in $tree/usr/lib64/ld-linux*.so.* "\$directory"/ld-linux*.so.*; do [ -e "\$loader" ] && break; done
$2
exec "\$loader" --library-path "\$directory" "$tree/$1" ${3:-} "\$@"
END
    chmod +x "$work/tree/$name"
}
script etcd usr/bin/etcd ""
script etcdctl usr/bin/etcdctl "export ETCDCTL_API=3"
script pgbouncer usr/sbin/pgbouncer ""
script patroni usr/bin/python3.11 "export PYTHONHOME=$tree/usr PYTHONPATH=$tree/usr/lib/python3/dist-packages" \
    "$tree/usr/bin/patroni"
for name in etcd etcdctl pgbouncer patroni; do mv "$work/tree/$name" "$work/$name"; done
mkdir "$work/made"
mv "$work/tree" "$work/made/tree"
for name in etcd etcdctl pgbouncer patroni; do mv "$work/$name" "$work/made/$name"; done
rm -rf "$prefix"
mv -T "$work/made" "$prefix"
"$prefix/patroni" --version >&2 || fail "the unpacked Patroni does not start"
echo "$prefix"
