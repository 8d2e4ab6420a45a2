#!/bin/sh
# limit: 30
# This host can find the address of a collector. Jobs and their schedds are found by the collector's word, as addresses.

# A pool that has listed the drone was found; its name service may fail for a while without harm to jobs.
if [ -e "${DRONE_DIR:-.}/condor/clock" ]; then echo "the pool has listed this drone"; exit 77; fi
command -v getent >/dev/null 2>&1 || { echo "getent is not on this host"; exit 77; }
unknown=''
for each in $(echo "${DRONE_COLLECTOR:-}" | tr ',' ' '); do
    case $each in *[!A-Za-z0-9._:-]*) exit 0 ;; esac      # an address in brackets
    host=${each%:*}
    case $host in *:*) exit 0 ;; *[!0-9.]*) ;; *) exit 0 ;; esac      # an address
    if getent ahosts "$host" >/dev/null 2>&1; then echo "$host is known"; exit 0; fi
    unknown="$unknown $host"
done
[ -n "$unknown" ] || exit 0
echo "no address found for the collector's host:$unknown"
exit 1
