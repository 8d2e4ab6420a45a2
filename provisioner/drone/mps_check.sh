#!/bin/sh
# limit: 60
# The drone's own MPS: each GPU has a control daemon and a server that keep the limits of memory.

exec sh "${DRONE_DIR:-.}/condor/mps.sh" check
