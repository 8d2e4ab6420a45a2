#!/bin/sh
# get-pyslurm.sh [PYTHON]: pyslurm for the Slurm and the Python of the root directory that get-slurm.sh makes of sid.
#
# Prints the directory with the package pyslurm in it, to be put on that Python's path, as its only line on stdout.
# PYTHON is one of this host with pip (default python3), by which the source of pyslurm is fetched from wherever this
# host's pip fetches things.
#
# pyslurm builds only beside the Slurm release that it was written for, and no Debian has that one (25.11). Its source
# compiles against 26.05 when told that it is for 26.05 and with three names of the older library put back; what the
# live tests use of it works then (and Job.get_resource_layout_per_node() crashes, which nothing of ours calls). It is
# compiled in a root directory of its own with gcc and Cython, unpacked by dpkg-deb like the other one.
#
# Cached as debian.sh says. Needs apt-get, dpkg-deb, tar and pip; root, for chroot.
. "$(dirname "$0")/debian.sh"

[ $# -le 1 ] || fail "usage: get-pyslurm.sh [PYTHON]"
host_python=${1:-python3}
release=25.11.2
cache=$(cache_directory)
prefix=$cache/pyslurm-sid
slurm=$("$(dirname "$0")/get-slurm.sh" sid)

# Raised when this script puts something else there. Another Slurm below it is another build, too.
edition="1 $(chroot "$slurm" slurmctld -V) $(chroot "$slurm" python3 -V)"
done_already() { [ "$(cat "$prefix/edition" 2>/dev/null)" = "$edition" ]; }
if done_already; then echo "$prefix"; exit 0; fi

[ "$(id -u)" = 0 ] || fail "run this as root: pyslurm is compiled in a root directory of its own"
need apt-get dpkg-deb tar "$host_python"
begin_build "$cache" pyslurm-sid
main_archive_of sid

# --------------------------------------------------------------------------------------------------------- fetch
say "fetching gcc and the headers of Slurm of Debian sid (about 100 MB, once), and pyslurm $release"
"$host_python" -m pip download -q --disable-pip-version-check --no-deps --no-binary pyslurm -d "$work" \
    "pyslurm==$release" >&2 || fail "pip does not get pyslurm $release"
apt update
apt install --download-only dash coreutils libc-bin gcc libc6-dev python3-dev python3-setuptools cython3 \
    libslurm-dev slurm-wlm-basic-plugins
unpack_packages "$work/tree"
[ -e "$tree/usr/bin/sh" ] || ln -s dash "$tree/usr/bin/sh"
mkdir -p "$tree/tmp" "$tree/dev/shm" "$tree/build"
[ -e "$tree/dev/null" ] || mknod -m 666 "$tree/dev/null" c 1 3
ldconfig -r "$tree"

# ------------------------------------------------------------------------------------------------------- compile
tar -xzf "$work/pyslurm-$release.tar.gz" -C "$tree/build" --strip-components=1 --no-same-owner
# 26.05 is "26.5" to its setup.py.
version=$(chroot "$slurm" slurmctld -V | sed -n 's/.* \([0-9]*\)\.0*\([0-9][0-9]*\)\..*/\1.\2/p')
[ -n "$version" ] || fail "the version of Slurm in $slurm is not told"
sed -i "s/^__version__ = .*/__version__ = \"$version.0\"/" "$tree/build/pyslurm/version.py"
library=$(cd "$tree" && ls -d usr/lib/*/slurm-wlm)
say "compiling pyslurm for Slurm $version (minutes, once)"
chroot "$tree" /usr/bin/env -i -C /build PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 \
    SLURM_LIB_DIR="/$library" SLURM_INCLUDE_DIR=/usr/include PYSLURM_BUILD_JOBS=2 \
    CFLAGS="-O0 -g0 -w -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf \
-DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=-1 -Wno-incompatible-pointer-types" \
    python3 setup.py build_ext --inplace -j 2 >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log" >&2; fail "pyslurm does not compile"; }

kept=$work/kept
mkdir "$kept"
cp -a "$tree/build/pyslurm" "$kept/"
find "$kept" \( -name '*.c' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h' \) -delete
echo "$edition" >"$kept/edition"
cd "$cache"
rm -rf "$prefix"
mv -T "$kept" "$prefix"
echo "$prefix"
