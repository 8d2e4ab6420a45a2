#!/bin/bash
# build.sh [SOURCE [OUT]] - packages the checkout SOURCE as deb and RPM of one staged tree, in OUT (var/packages).
# Needs PYTHON (python3.11 or newer) with requirements/build.txt, dpkg-deb, rpmbuild, hardlink, and the package index.
# COMPRESSION=none is for tests: large and quick.
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/settings.sh
source=$(realpath "${1:-.}")
out=$(realpath -m "${2:-var/packages}")
mkdir -p "$out" var/packages
deb_compression=zstd rpm_payload=w9.zstdio
[ "${COMPRESSION:-}" != none ] || deb_compression=none rpm_payload=w.ufdio

commit=$(git -C "$source" describe --always --dirty --exclude='*' --abbrev=8)
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$source/provisioner/__init__.py")
release=$(git -C "$source" rev-list --count HEAD).g${commit/-/.}
when=$(git -C "$source" log -1 --format=%ct)
stage=$(mktemp -d -p "$out")
trap 'rm -rf "$stage"' EXIT
root=$stage/root lib=$stage/root$HOME_DIR/lib

# The wheels, once for each list of requirements. Scripts of packages go: they would name the Python of the build.
wheels=$PWD/var/packages/wheels-$(cat requirements/all.txt packaging/settings.sh | sha256sum | cut -c1-12)
if [ ! -d "$wheels" ]; then
    for python in $PYTHONS; do
        pip_for "$python" install --require-hashes --no-compile -r requirements/all.txt --target "$stage/wheels/python$python/site-packages"
        rm -rf "$stage/wheels/python$python/site-packages/bin"
    done
    hardlink -q -t "$stage/wheels"  # most files are the same for each Python
    mv "$stage/wheels" "$wheels"
fi
mkdir -p "$lib" "$root$HOME_DIR/bin" "$root/usr/bin"
cp -al "$wheels/." "$lib" 2>/dev/null || cp -a "$wheels/." "$lib"  # another file system
"$PYTHON" -m pip --disable-pip-version-check -q wheel --no-deps --no-build-isolation -w "$stage" "$source"
for python in $PYTHONS; do
    pip_for "$python" install --no-compile --no-index --target "$lib/python$python/site-packages" "$stage"/*.whl
    rm -rf "$lib/python$python/site-packages/bin"
    echo "$commit" >"$lib/python$python/site-packages/provisioner/COMMIT"
    ln -s "/usr/bin/python$python" "$root$HOME_DIR/bin/python$python"
done
# One virtual environment for several versions of the distribution's Python: each has its own directory in lib.
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$root$HOME_DIR/pyvenv.cfg"

put() { install -D -m "$1" "$2" "$root$3"; }
put 755 packaging/provisioner.sh $HOME_DIR/bin/provisioner
ln -s $HOME_DIR/bin/provisioner "$root/usr/bin/provisioner"
for unit in packaging/systemd/*.service packaging/systemd/*.timer; do put 644 "$unit" "/usr/lib/systemd/system/${unit##*/}"; done
put 644 packaging/systemd/provisioner.sysusers /usr/lib/sysusers.d/provisioner.conf
put 644 packaging/systemd/provisioner.tmpfiles /usr/lib/tmpfiles.d/provisioner.conf
for file in packaging/systemd/provisioner-local.conf packaging/provisioner.sudoers; do put 644 "$file" "/usr/share/$NAME/${file##*/}"; done
put 644 "$source/LICENSE" /usr/share/doc/$NAME/copyright
for example in "$source"/site_configs/*.yaml; do put 644 "$example" "/etc/provisioner/examples/${example##*/}"; done
PYTHONPATH=$(ls -d "$lib/python$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages") \
    PYTHONDONTWRITEBYTECODE=1 "$PYTHON" docs/make_man.py "$root"
find "$root" -exec touch -h -d "@$when" {} +
chmod -R u=rwX,go=rX "$root"

# deb
files() { (cd "$root" && find . "$@" -printf '/%P\n' | sort); }
script() { printf '#!/bin/sh\nset -e\n%s\n%s\n' "$(cat packaging/scripts.sh)" "$1"; }
describe="Starts pilot jobs for GPU jobs that wait in an HTCondor pool"
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<EOF
Package: $NAME
Version: $version-$release
Architecture: amd64
Maintainer: The gpu-drone-provisioner developers <noreply@localhost>
Section: net
Priority: optional
Depends: python3 (>= ${PYTHONS%% *}), python3 (<< 3.$((${PYTHONS##*.} + 1))), systemd
Recommends: sudo
Description: $describe
 Controller and web service with their units, and the command provisioner.
EOF
files -path './etc/*' -type f >"$root/DEBIAN/conffiles"
script '[ "$1" != configure ] || after_install "${2:+upgrade}"' >"$root/DEBIAN/postinst"
script '[ "$1" != remove ] || before_remove' >"$root/DEBIAN/prerm"
script '[ "$1" != remove ] || after_remove' >"$root/DEBIAN/postrm"
chmod 755 "$root"/DEBIAN/*[!s]
dpkg-deb --root-owner-group -Z"$deb_compression" -z9 -b "$root" "$out" >/dev/null
rm -r "$root/DEBIAN"

# RPM
{
    files -path './etc/*' -type f -exec false \; -o -path './etc/*' -type f | sed 's/.*/%config(noreplace) "&"/'
    files ! -type d ! -path './etc/*' | sed 's/.*/"&"/'
    files -type d \( -path ".$HOME_DIR*" -o -path './etc/provisioner*' -o -name $NAME \) | sed 's/.*/%dir "&"/'
} >"$stage/files"
cat >"$stage/spec" <<EOF
Name: $NAME
Version: $version
Release: $release
Summary: $describe
License: Apache-2.0
AutoReqProv: no
Requires: ($(printf 'python%s or ' $PYTHONS | sed 's/ or $//')), systemd
Recommends: sudo
%global __os_install_post %{nil}
%global debug_package %{nil}
%global _build_id_links none
%global _binary_payload $rpm_payload
%description
Controller and web service with their units, and the command provisioner.
%install
cp -al $root/. %{buildroot}
%files -f $stage/files
%defattr(-,root,root,-)
%post
$(script 'if [ "$1" -gt 1 ]; then after_install upgrade; else after_install ""; fi' | tail -n +2)
%preun
$(script '[ "$1" != 0 ] || before_remove' | tail -n +2)
%postun
$(script '[ "$1" != 0 ] || after_remove' | tail -n +2)
EOF
rpmbuild -bb --quiet --target x86_64 --define "_topdir $stage/rpm" --define "_rpmdir $out" --define "_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm" "$stage/spec"
ls -sh "$out"/*.deb "$out"/*.rpm
