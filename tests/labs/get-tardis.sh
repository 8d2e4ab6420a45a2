#!/bin/sh
# get-tardis.sh: COBalD/TARDIS as published, for the tests of a shadow, without root or change to this host.
#
# Prints the directory of a virtual environment that has it as its only line on stdout. It comes from where this host's
# pip gets its packages.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run COBalD/TARDIS "$@"

[ $# -eq 0 ] || fail "usage: get-tardis.sh [--optional]"
cache=$(cache_directory)
prefix=$cache/tardis-0.9.0

done_already() { [ -d "$prefix" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need python3
begin_build "$cache" tardis
say "installing COBalD/TARDIS 0.9.0 (about 30 MB, once)"
python3 -m venv "$work/tardis" >&2
"$work/tardis/bin/python" -m pip --disable-pip-version-check -q install cobald==0.14.0 cobald-tardis==0.9.0 >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "pip could not install cobald-tardis"; }
mv -T "$work/tardis" "$prefix"
echo "$prefix"
