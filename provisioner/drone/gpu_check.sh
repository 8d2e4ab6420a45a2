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

# A line per GPU: index, UUID, uncorrectable errors since the driver was loaded (a number, or a word in brackets). One that
# was lost has a line of another form, and may change the exit status: it says nothing about the others.
said=$(nvidia-smi --query-gpu=index,uuid,ecc.errors.uncorrected.volatile.total --format=csv,noheader 2>&1)
gpus=$(echo "$said" | tr -d ' ' | grep '^[0-9][0-9]*,GPU-')
if [ -z "$gpus" ]; then echo "nvidia-smi failed: $(echo "$said" | tail -n 1)"; exit 1; fi

wanted=${DRONE_GPUS:-1}
[ "${DRONE_SHARING:-exclusive}" != mig ] || wanted=$((wanted * ${DRONE_SHARES:-1}))

# The UUID of its GPU for each MIG instance, in order. The long listing may number GPUs otherwise once one was lost.
listed=$(nvidia-smi -L 2>/dev/null)
instances=$(echo "$listed" | while read -r kind rest; do
    case $kind in
        GPU) uuid=${rest##*UUID: } ;;
        MIG) echo "${uuid%%)*}" ;;
    esac
done)
# Slurm numbers MIG instances where it gives instances: all GPUs are divided, and the drone wants no whole ones, or there is
# no GPU of such a number.
numbered=GPU
if [ "$mine" = all ]; then
    mine=$(echo "$gpus" | cut -d, -f1 | paste -s -d, -)
elif [ "$(echo "$instances" | sort -u | grep -c .)" -eq "$(echo "$listed" | grep -c '^GPU ')" ]; then
    [ "${DRONE_SHARING:-exclusive}" = mig ] || numbered=instance
    for device in $(echo "$mine" | tr ',' ' '); do
        case $device in *[!0-9]*) ;; *) echo "$gpus" | grep -q "^$device," || numbered=instance ;; esac
    done
fi

count=0
for device in $(echo "$mine" | tr ',' ' '); do
    case $device in
        MIG-*)
            # A slice of a GPU: only the long listing has it, and its errors are those of the GPU.
            if ! echo "$listed" | grep -qF "$device"; then echo "there is no $device"; exit 1; fi
            line='' ;;
        *[!0-9]*) line=$(echo "$gpus" | grep -F ",$device" | head -n 1) ;;
        *)
            line=$(echo "$gpus" | grep "^$device," | head -n 1)
            if [ $numbered = instance ]; then
                uuid=$(echo "$instances" | sed -n "$((device + 1))p")
                if [ -z "$uuid" ]; then
                    echo "there is no MIG instance $device, only $(echo "$instances" | grep -c .)"
                    exit 1
                fi
                line=$(echo "$gpus" | grep -F ",$uuid," | head -n 1)
            fi ;;
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
    case $numbered:${DRONE_SHARING:-exclusive}:$device in
        instance:* | GPU:mig:MIG-*) ;;
        GPU:mig:*) uuid=${line#*,} devices=$(echo "$instances" | grep -cxF "${uuid%%,*}") ;;
    esac
    count=$((count + devices))
done
if [ "$count" -lt "$wanted" ]; then echo "the site assigned $count of $wanted GPUs: $mine"; exit 1; fi
echo "$count GPUs answer"
