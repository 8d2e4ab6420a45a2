#!/bin/sh
# get-auditor.sh: AUDITOR's HTCondor collector and APEL plug-in as published, for the tests of accounting, without root or change to this host.
#
# Prints the directory of a virtual environment that has it as its only line on stdout. It comes from where this host's
# pip gets its packages.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run AUDITOR "$@"

[ $# -eq 0 ] || fail "usage: get-auditor.sh [--optional]"
cache=$(cache_directory)
prefix=$cache/auditor-0.11.2

done_already() { [ -d "$prefix" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need python3
begin_build "$cache" auditor
say "installing AUDITOR 0.11.2 (about 70 MB, once)"
python3 -m venv "$work/auditor" >&2
"$work/auditor/bin/python" -m pip --disable-pip-version-check -q install auditor-htcondor-collector==0.11.2 auditor-apel-plugin==0.11.2 >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "pip could not install AUDITOR"; }
mv -T "$work/auditor" "$prefix"
echo "$prefix"
