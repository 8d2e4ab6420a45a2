# MPS of a drone: for each of its GPUs a control daemon of its own, so that a fault ends only the work of one GPU, with a limit
# of memory for each process. Nothing starts before a server lives with its limit. Needs $clean, $D, $LOGS, $mps_parts, and
# list_mps_gpus, which prints a line for each GPU: id, UUID, MiB.
start_mps() {
    command -v nvidia-cuda-mps-control >/dev/null ||
        finish $NOT_STARTED no-mps "nvidia-cuda-mps-control is not on this host, and the GPUs are shared by MPS"
    mkdir -p "$D/mps/jobs"
    cat >"$D/mps.sh" <<'MPS'
exit 71 # @include mps.sh
MPS
    list_mps_gpus >"$D/mps/found"
    number=0
    while read -r id uuid mib; do
        mib=$(((DRONE_VRAM_MIB > 0 ? DRONE_VRAM_MIB : ${mib:-0}) / mps_parts))
        [ "$mib" -gt 0 ] || finish $NOT_STARTED no-mps "the memory of $id is unknown: set the drone type's vram"
        echo "$number $id $uuid $mib" >>"$D/mps/gpus"
        start_mps_daemon
        number=$((number + 1))
    done <"$D/mps/found"
    [ -n "$mps" ] || finish $NOT_STARTED no-mps "no GPU was found"
    write_mps_check
    add_site_checks
    # A server makes a context on its GPU, which takes seconds where nothing keeps the driver loaded.
    limit=$((now + 60))
    while :; do
        # shellcheck disable=SC2086
        ask_driver 60 $clean sh "$D/mps.sh" check
        code=$?
        [ $code -ne 0 ] || break
        if [ $code -ne 3 ] || [ "$now" -ge $limit ] || grep -q 'exited with status' "$D/said"; then
            finish $NOT_STARTED no-mps "$(said_by_driver)"
        fi
        rest 0.5
    done
}
# One GPU's daemon ($number, $uuid, $mib), its limit and its server. Clients know their GPU by UUID: to a daemon that
# sees one GPU by index, the others' index is another GPU.
start_mps_daemon() {
    pipes=$D/mps/$number
    [ ${#pipes} -le 87 ] ||
        finish $NOT_STARTED no-mps "$pipes is too long for the sockets of MPS: ${#pipes} characters, at most 87"
    mkdir -p "$pipes" "$LOGS/mps-$number"
    # shellcheck disable=SC2086
    ask_driver 20 $clean CUDA_MPS_PIPE_DIRECTORY="$pipes" CUDA_MPS_LOG_DIRECTORY="$LOGS/mps-$number" \
        CUDA_VISIBLE_DEVICES="$uuid" nvidia-cuda-mps-control -d ||
        finish $NOT_STARTED no-mps "the MPS control daemon does not start (exit $?): $(said_by_driver)"
    mps=yes
    ask_driver 8 tell_mps 5 "set_default_device_pinned_mem_limit 0 ${mib}M"      # `check` reads it back
    ask_driver 8 tell_mps 5 "start_server -uid $(id -u)"
}
# tell_mps LIMIT_S WORDS
tell_mps() {
    # shellcheck disable=SC2086
    echo "$2" | $clean CUDA_MPS_PIPE_DIRECTORY="$D/mps/$number" timeout -k 1 "$1" nvidia-cuda-mps-control >>"$LOGS/mps.out" 2>&1
}
quit_mps() {
    quitting=
    for pipes in "$D"/mps/[0-9]*/; do
        number=$(basename "$pipes")
        tell_mps 1 'quit -t 1' &
        quitting="$quitting $!"
    done
    # shellcheck disable=SC2086
    wait $quitting
    mps=''
}
