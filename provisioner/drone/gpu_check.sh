#!/bin/sh
# limit: 150
# The GPUs that the site assigned are there, answer, and have no uncorrectable memory error. Of a GPU with MIG on, each
# slice counts. Where there is Python, gpu_health.py checks much more, and takes single GPUs offline.
# Says why not on its last line of output; exit 77 means that there is nothing to check.

if [ -n "${DRONE_GPU_SIMULATE:-}" ]; then echo "the site says that the GPUs are simulated"; exit 77; fi
health=${DRONE_DIR:-.}/condor/gpu_health.py
if [ -r "$health" ] && python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; then
    exec python3 "$health"
fi
if [ "${DRONE_VENDOR:-nvidia}" != nvidia ]; then echo "without Python only NVIDIA's GPUs are checked"; exit 77; fi
if ! command -v nvidia-smi >/dev/null 2>&1; then echo "nvidia-smi is not on this host"; exit 1; fi

mine=${CUDA_VISIBLE_DEVICES-all}
case $mine in
    '' | -1 | NoDevFiles | none | void) echo "the site assigned no GPU: CUDA_VISIBLE_DEVICES is '$mine'"; exit 1 ;;
esac

# A line per GPU: index, UUID, uncorrectable errors since the driver was loaded (a number, or a word in brackets).
if ! gpus=$(nvidia-smi --query-gpu=index,uuid,ecc.errors.uncorrected.volatile.total --format=csv,noheader 2>&1); then
    echo "nvidia-smi failed: $(echo "$gpus" | tail -n 1)"
    exit 1
fi
gpus=$(echo "$gpus" | tr -d ' ')
[ "$mine" != all ] || mine=$(echo "$gpus" | cut -d, -f1 | paste -s -d, -)

wanted=${DRONE_GPUS:-1}
[ "${DRONE_SHARING:-exclusive}" != mig ] || wanted=$((wanted * ${DRONE_SHARES:-1}))
# slices_of INDEX: how many MIG has made of this GPU.
slices_of() { nvidia-smi -L 2>/dev/null | sed -n "/^GPU $1:/,/^GPU /p" | grep -c '^ *MIG '; }

count=0
for device in $(echo "$mine" | tr ',' ' '); do
    case $device in
        MIG-*)
            # A slice of a GPU: only the long listing has it, and its errors are those of the GPU.
            if ! nvidia-smi -L 2>/dev/null | grep -qF "$device"; then echo "there is no $device"; exit 1; fi
            line='' ;;
        *[!0-9]*) line=$(echo "$gpus" | grep -F ",$device" | head -n 1) ;;
        *) line=$(echo "$gpus" | grep "^$device," | head -n 1) ;;
    esac
    case $device:$line in
        MIG-*:) ;;
        *:) echo "there is no GPU $device, only $(echo "$gpus" | cut -d, -f1 | paste -s -d' ' -)"; exit 1 ;;
    esac
    errors=${line##*,}
    case $errors in
        '' | *[!0-9]* | 0) ;;
        *) echo "GPU $device has $errors uncorrectable memory errors"; exit 1 ;;
    esac
    devices=1
    case ${DRONE_SHARING:-exclusive}:$device in
        mig:MIG-*) ;;
        mig:*) devices=$(slices_of "${line%%,*}") ;;
    esac
    count=$((count + devices))
done
if [ "$count" -lt "$wanted" ]; then echo "the site assigned $count of $wanted GPUs: $mine"; exit 1; fi
echo "$count GPUs answer"
