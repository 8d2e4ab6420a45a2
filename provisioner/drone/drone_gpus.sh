# GPUs of others, which the drone cannot open where the node permits it. Needs $clean and $D.
# What the wrapper reads: its tools, the account, and the device files of the GPUs that the site assigned.
prepare_guard() {
    gpu_guard=environment guarded='' wrapper=''
    unshare=$(command -v unshare) mount=$(command -v mount)
    printf '%s\n' "unshare='$unshare'" "mount='$mount'" "tools='$(echo "$PATH" | tr -d "'")'" "uid=$(id -u)" "gid=$(id -g)" guard_jobs=no >"$D/guard"
    cat >"$D/job_wrapper.sh" <<'JOB_WRAPPER'
exit 71 # @include job_wrapper.sh
JOB_WRAPPER
    chmod 700 "$D/job_wrapper.sh"
    for copy in drone_wrapper gpu_wrapper; do cp "$D/job_wrapper.sh" "$D/$copy.sh"; done
    { grep -v '^tty:' /etc/group || true; } >"$D/group" 2>/dev/null
    chmod 644 "$D/group"
    : >"$D/gpus"
    : >"$D/dcgm"
    [ "$DRONE_GPUS" -eq 0 ] || gpu_table >"$D/gpus"
    devices=$(grep -c . "$D/gpus")
    # Where some are hidden the others may have other indices.
    seen=
    case ${CUDA_VISIBLE_DEVICES-all}:$devices in
        *[!0-9,]*:* | :* | *:0) ;;
        *) seen=CUDA_VISIBLE_DEVICES=$(cut -d ' ' -f 1 "$D/gpus" | paste -s -d, -) ;;
    esac
}
# shellcheck disable=SC2016
namespace_works() {
    [ -c /dev/full ] && GUARD_ALSO=/dev/full $clean timeout -k 1 20 sh "$D/drone_wrapper.sh" \
        sh -c '[ "$(id -u)" = "$1" ] && ! (: </dev/full)' probe "$(id -u)" >/dev/null 2>&1
}
# gpu_table: a line for each NVIDIA GPU and MIG instance that the site assigned: its UUID, and device files of its own.
gpu_table() {
    # shellcheck disable=SC2086
    ask_driver 60 $clean nvidia-smi -L || return
    # "INDEX UUID" of GPUs, "INDEX.DEVICE UUID" of MIG instances
    uuids=$(while read -r kind first rest; do
        uuid=${rest##*UUID: }
        device=${rest#Device}
        case $kind in
            GPU) gpu=${first%:}; echo "$gpu ${uuid%%)*}" ;;
            MIG) echo "$gpu.$(echo ${device%%:*}) ${uuid%%)*}" ;;
        esac
    done <"$D/said")
    index='' device='' instance='' instances=''
    # shellcheck disable=SC2086
    ask_driver 60 $clean nvidia-smi -q
    while read -r line; do
        value=${line##* }
        case $line in
            'GPU '????????:*) index='' address=$(echo "${line#GPU ????}" | tr A-F a-f) instances='' ;;
            # After a GPU was lost, -q has more GPUs than -L, or fewer: the UUID tells which one this is.
            'GPU UUID '*) index=$(echo "$uuids" | sed -n "s/ $value\$//p") ;;
            'Index '*) device=$value ;;
            'GPU Instance ID '*) instance=$value ;;
            'Compute Instance ID '*) instances="$instances $device:gi$instance:ci$value" ;;
            'Minor Number '*) [ -z "$index" ] || gpu_files "$value" ;;
        esac
    done <"$D/said"
}
# gpu_files MINOR: the lines of the GPU with this index, PCI address and instances, if it is ours.
gpu_files() {
    gpu=$(echo "$uuids" | sed -n "s/^$index //p")
    files=/dev/nvidia$1
    if [ -z "$instances" ]; then
        for node in "/sys/bus/pci/devices/$address/drm"/*; do
            [ ! -e "$node" ] || files="$files /dev/dri/${node##*/}"
        done
        if assigned "$index" || assigned "$gpu"; then
            echo "$gpu $files "
            echo "$gpu $1" >>"$D/dcgm"
        fi
    fi
    for each in $instances; do
        uuid=$(echo "$uuids" | sed -n "s/^$index[.]${each%%:*} //p")
        assigned "$index" || assigned "$gpu" || assigned "$uuid" || continue
        each=${each#*:}
        caps=$(sed -n "s,^gpu$1/${each%:*}/access ,,p; s,^gpu$1/${each%:*}/${each#*:}/access ,,p" \
            /proc/driver/nvidia-caps/mig-minors 2>/dev/null)
        instance=${each%:*}
        echo "$uuid $1.${instance#gi}" >>"$D/dcgm"
        [ -z "$caps" ] || echo "$uuid $files$(printf ' /dev/nvidia-caps/nvidia-cap%s' $caps) "
    done
}
# assigned NAME: the site gave it to us; a UUID may be its beginning.
assigned() {
    case ,${CUDA_VISIBLE_DEVICES-all}, in ,all, | *,"$1",*) return 0 ;; esac
    for name in $(echo "$CUDA_VISIBLE_DEVICES" | tr ',' ' '); do
        case $name:$1 in [0-9]*) ;; *:"$name"*) return 0 ;; esac
    done
    return 1
}
