#!/bin/sh
# get-tardis.sh: COBalD/TARDIS as published, for the tests of a shadow, without root or change to this host.
#
# Prints the directory of a virtual environment that has it as its only line on stdout.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run COBalD/TARDIS "$@"

[ $# -eq 0 ] || fail "usage: get-tardis.sh [--optional]"
published tardis-0.9.0 "COBalD/TARDIS 0.9.0" 30 cobald==0.14.0 cobald-tardis==0.9.0
