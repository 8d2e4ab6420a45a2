#!/bin/sh
# Runs the command by the first Python of this host for which the package has libraries.
unset PYTHONPATH PYTHONHOME
for python in /opt/gpu-drone-provisioner/bin/python3.*; do
    [ ! -x "$python" ] || exec "$python" -P -m provisioner.cli "$@"
done
echo "provisioner: none of these is installed: $(cd /opt/gpu-drone-provisioner/bin && echo python3.*)" >&2
exit 1
