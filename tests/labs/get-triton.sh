#!/bin/sh
# get-triton.sh: NVIDIA's Triton inference server and its client as published, for the tests of inference services, without
# root or change to this host. It needs no GPU.
#
# Prints the directory of a virtual environment that has both (`pytriton`, `tritonclient`) as its only line on stdout.
#
# With --optional it says why on stderr, and exits with 0, where it cannot be had: the tests that need it are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run Triton "$@"

[ $# -eq 0 ] || fail "usage: get-triton.sh [--optional]"
# Drones of the tests run as an account that cannot read below root's home, where another Python may be.
PATH=/usr/bin:$PATH
environment=$(published triton-0.7.0 "Triton 2.51 (pytriton 0.7.0)" 120 nvidia-pytriton==0.7.0 "tritonclient[all]==2.73.0" "numpy<2")
# The server embeds the same Python, as a library.
library=$("$environment/bin/python" -c '
import sysconfig
of = sysconfig.get_config_var
print(of("LIBDIR") + "/" + of("INSTSONAME"))')
case $library in *.so.*) ;; *) fail "$environment/bin/python has no shared library: install Debian'\''s python3 and libpython3" ;; esac
[ -e "$library" ] || fail "$library is missing: install Debian's package of it"
libraries=$(echo "$environment"/lib/python3*/site-packages/nvidia_pytriton.libs)
[ -e "$libraries/${library##*/}" ] || ln -s "$library" "$libraries/"
echo "$environment"
