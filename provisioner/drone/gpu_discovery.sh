#!/bin/sh
# limit: 60
# HTCondor's own discovery finds the GPUs that were promised: what it does not find it cannot hand out.
# $DRONE_DISCOVERY is the program.

if [ -n "${DRONE_GPU_SIMULATE:-}" ]; then how=-simulate:$DRONE_GPU_SIMULATE; else how=-extra; fi
if ! found=$("$DRONE_DISCOVERY" "$how" 2>&1); then
    echo "condor_gpu_discovery failed: $(echo "$found" | tail -n 1)"
    exit 1
fi
# DetectedGPUs="GPU-a0223334, GPU-b1334445", or DetectedGPUs=0
count=$(echo "$found" | sed -n 's/^DetectedGPUs="\{0,1\}\([^"]*\).*/\1/p' | tr ',' '\n' | grep -c '[^0 ]')
if [ "$count" -lt "${DRONE_GPUS:-1}" ]; then echo "HTCondor finds $count of ${DRONE_GPUS:-1} GPUs"; exit 1; fi
echo "HTCondor finds $count GPUs"
