#!/bin/sh
# limit: 60
# HTCondor's own discovery finds the GPUs, or shares of them, that were promised: what it does not find it cannot hand
# out. $DRONE_DISCOVERY is the program, $DRONE_DISCOVERY_OPTIONS what the startd tells it. A GPU that is offline may be
# missing, or make it hang.

if grep -qs '^DroneGpusOffline = [1-9]' "${DRONE_DIR:-.}/condor/gpus.conf"; then echo "a GPU is offline"; exit 77; fi

# shellcheck disable=SC2086
if ! found=$("$DRONE_DISCOVERY" $DRONE_DISCOVERY_OPTIONS 2>&1); then
    echo "condor_gpu_discovery failed: $(echo "$found" | tail -n 1)"
    exit 1
fi
# DetectedGPUs="GPU-a0223334, GPU-b1334445", or DetectedGPUs=0; a GPU is there once for each of its shares
count=$(echo "$found" | sed -n 's/^DetectedGPUs="\{0,1\}\([^"]*\).*/\1/p' | tr ',' '\n' | grep -c '[^0 ]')
wanted=$((${DRONE_GPUS:-1} * ${DRONE_SHARES:-1}))
what=GPUs
[ "${DRONE_SHARES:-1}" -eq 1 ] || what='shares of GPUs'
if [ "$count" -lt "$wanted" ]; then echo "HTCondor finds $count of $wanted $what"; exit 1; fi
# An instance of MIG has its own memory, and the driver keeps up to a tenth of it.
promised=$((${DRONE_VRAM_MIB:-0} / ${DRONE_SHARES:-1}))
for has in $(echo "$found" | grep -E '^MIG|^Common' | sed -n 's/.*GlobalMemoryMb=\([0-9]*\).*/\1/p'); do
    case $found in *MIG-*) ;; *) continue ;; esac
    if [ "$has" -lt $((promised * 85 / 100)) ]; then
        echo "a MIG instance has $has MiB, and the drone type promises $promised"
        exit 1
    fi
done
echo "HTCondor finds $count $what"
