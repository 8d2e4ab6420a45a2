#!/bin/sh
# get-auditor.sh: AUDITOR's HTCondor collector and APEL plug-in as published, for the tests of accounting, without root or change to this host.
#
# Prints the directory of a virtual environment that has it as its only line on stdout.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run AUDITOR "$@"

[ $# -eq 0 ] || fail "usage: get-auditor.sh [--optional]"
published auditor-0.11.2 "AUDITOR 0.11.2" 70 auditor-htcondor-collector==0.11.2 auditor-apel-plugin==0.11.2
