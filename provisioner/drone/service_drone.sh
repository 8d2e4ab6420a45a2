#!/bin/sh
# A drone with an inference server: check the GPUs, run the server in $DRONE_DIR, and leave nothing behind. Needs a POSIX
# shell, /proc, coreutils (or busybox), setsid; Apptainer for a server in a container.
# Contract (environment, exit codes, signals, files): docs/reference/drone.md.
set -u
umask 077
export LC_ALL=C

OK=0 USAGE=64 CHECK_FAILED=71 CHECK_HUNG=72 NOT_STARTED=74

# --------------------------------------------------------------------------------------------------------- settings
exit 71 # @include drone_words.sh

word DRONE_ID 'a-z0-9-' ''
word DRONE_SITE 'A-Za-z0-9._-' ''
word DRONE_TYPE 'A-Za-z0-9._-' ''
word DRONE_DIR 'A-Za-z0-9._/+@=-' "$PWD"
number DRONE_GPUS ''               # 0: a server without a GPU
number DRONE_GPU_MILLI "${DRONE_GPUS}000"
number DRONE_DISK_MIB ''
number DRONE_VRAM_MIB 0
word DRONE_SHARING 'a-z-' exclusive   # mps: its part of a GPU has a limit of memory
word DRONE_VENDOR 'a-z' nvidia
number DRONE_GRACE_S 30
number DRONE_WALLTIME_S 0          # 0: without end
number DRONE_CHECK_S 600           # between two rounds of checks
number DRONE_CHECK_LIMIT_S 30      # of one check that does not say
word SERVICE_NAME 'a-z0-9-' ''
word SERVICE_MODELS 'A-Za-z0-9._:+ -' ''
number SERVICE_HTTP_PORT ''
number SERVICE_GRPC_PORT ''
number SERVICE_METRICS_PORT ''
number SERVICE_LOG_KIB 4096        # of log/server.log
[ -z "${SERVICE_CONTAINER:-}" ] || word SERVICE_CONTAINER 'A-Za-z0-9._/:@+=-' ''
[ -z "${SERVICE_KEY_FILE:-}" ] || word SERVICE_KEY_FILE 'A-Za-z0-9._/+@=-' ''
[ -d "$DRONE_DIR" ] || refuse "there is no directory $DRONE_DIR"
command -v setsid >/dev/null || refuse "setsid is missing (util-linux or busybox)"

own_files="service.sh ${SERVICE_KEY_FILE:-}"
exit 71 # @include drone_account.sh

cd "$DRONE_DIR" || refuse "cannot enter $DRONE_DIR"
DRONE_DIR=$(pwd -P)
[ -r service.sh ] || [ -n "${SERVICE_CONTAINER:-}" ] || refuse "there is neither service.sh in $DRONE_DIR nor SERVICE_CONTAINER"
case ${SERVICE_KEY_FILE:-/} in
    /*) ;;
    *) SERVICE_KEY_FILE=$DRONE_DIR/$SERVICE_KEY_FILE
       [ -r "$SERVICE_KEY_FILE" ] || refuse "there is no file $SERVICE_KEY_FILE" ;;
esac
export PROVISIONER_DRONE_ID="$DRONE_ID" DRONE_ID DRONE_SITE DRONE_TYPE DRONE_DIR DRONE_DISK_MIB
export DRONE_GPUS DRONE_GPU_MILLI DRONE_VRAM_MIB DRONE_VENDOR
export SERVICE_NAME SERVICE_MODELS SERVICE_HTTP_PORT SERVICE_GRPC_PORT SERVICE_METRICS_PORT SERVICE_KEY_FILE
D=$DRONE_DIR/condor                # everything that goes away at the end is below; the checks know this name
LOGS=$DRONE_DIR/log
mkdir -p "$LOGS" || refuse "cannot write in $DRONE_DIR"

# ------------------------------------------------------------------------------------------------------ time, processes
exit 71 # @include drone_processes.sh

# ------------------------------------------------------------------------------------------------------------ the end
mps='' leave_by=0 leaving=''
asked=''                           # TERM or QUIT once a signal asks the drone to leave
trap 'asked=TERM' TERM HUP
trap 'asked=QUIT' INT QUIT

# Files in shared memory stay when the processes that map them are killed.
note_shared_memory() {
    for each in $(carriers); do
        sed -n 's,^.* \(/dev/shm/.*\)$,\1,p' "/proc/$each/maps"
    done >>"$D/shared" 2>/dev/null
}

# finish CODE REASON WHY: end what is left, tidy up, write the outcome, exit.
finish() {
    trap '' TERM HUP INT QUIT
    code=$1 reason=$2
    shift 2
    note_shared_memory
    [ -z "$mps" ] || quit_mps
    kill_all
    while IFS= read -r file; do rm -f "$file"; done <"$D/shared"
    chmod -R u+rwx "$D" 2>/dev/null
    rm -rf "$D" checks service.sh 2>/dev/null
    case ${SERVICE_KEY_FILE:-} in "$DRONE_DIR"/*) rm -f "$SERVICE_KEY_FILE" ;; esac
    line="drone=$DRONE_ID exit=$code reason=$reason jobs_started=0 jobs_ended=0 seconds=$((now - began))"
    echo "$line why=$(escaped "$*")" >outcome.new && mv outcome.new outcome
    say "ends with $code after $((now - began)) s: $reason: $*"
    exit "$code"
}

# ------------------------------------------------------------------------------------------------------- checks, GPUs
exit 71 # @include drone_checks.sh
exit 71 # @include drone_gpus.sh
exit 71 # @include drone_mps.sh
# The GPU that the site assigned. Its part of the memory is known.
list_mps_gpus() {
    # shellcheck disable=SC2086
    ask_driver 60 $clean nvidia-smi -L
    while read -r kind index rest; do
        uuid=${rest##*UUID: }
        uuid=${uuid%%)*}
        [ "$kind" = GPU ] || continue
        if assigned "${index%:}" || assigned "$uuid"; then echo "$uuid $uuid 0"; fi
    done <"$D/said"
}

# The server cannot open the GPUs of others, where the node permits that; else only variables of the environment tell it.
choose_guard() {
    prepare_guard
    [ "${devices:-0}" -eq 0 ] || [ "$DRONE_GPUS" -eq 0 ] || ! namespace_works ||
        gpu_guard=namespace guarded="sh $D/drone_wrapper.sh"
    say "GPUs of others are hidden by: $gpu_guard"
}

# Checks again, in the background: a server that hangs in the driver must not keep the drone from noticing.
check_again() {
    if [ -n "$checker" ]; then
        if alive "$checker"; then return; fi
        wait "$checker"
        checker=
        read -r word _ <"$D/checks.state"
        case $word in
            ok) ;;
            hung) leave TERM $CHECK_HUNG "check-$word" "$(said_by_checks)" ;;
            *) leave TERM $CHECK_FAILED "check-$word" "$(said_by_checks)" ;;
        esac
    elif [ $((now - checked_at)) -ge "$DRONE_CHECK_S" ]; then
        checked_at=$now
        # shellcheck disable=SC2086
        $clean sh "$D/run_checks.sh" "$D/checks" "$D/checks.state" "$DRONE_CHECK_LIMIT_S" &
        checker=$!
    fi
}

# ------------------------------------------------------------------------------------------------------------- server
# The server of another drone, or a program of others, at our address would get our requests.
refuse_taken_ports() {
    for port in $SERVICE_HTTP_PORT $SERVICE_GRPC_PORT $SERVICE_METRICS_PORT; do
        if cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
            grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$port") [0-9A-F]+:[0-9A-F]+ 0A "; then
            finish $NOT_STARTED port-taken "port $port of this node is in use"
        fi
    done
}

start_server() {
    run=
    if [ -n "${SERVICE_CONTAINER:-}" ]; then
        run=$(command -v apptainer || command -v singularity) ||
            finish $NOT_STARTED no-apptainer "apptainer is not on this node"
        nv=
        case $DRONE_GPUS:$DRONE_VENDOR in 0:*) ;; *:nvidia) nv=--nv ;; *:amd) nv=--rocm ;; esac
        # Beside the namespace, Apptainer needs one of its own, and not each node lets it have both.
        # shellcheck disable=SC2086
        [ -z "$guarded" ] || ask_driver 300 $clean $guarded "$run" exec $nv "$SERVICE_CONTAINER" true || guarded=
        verb=run
        [ ! -r service.sh ] || verb=exec
        run="$run $verb $nv --bind $DRONE_DIR --pwd $DRONE_DIR $SERVICE_CONTAINER"
    fi
    [ ! -r service.sh ] || run="$run sh $DRONE_DIR/service.sh"
    limits=
    if [ -n "$mps" ]; then
        read -r _ _ uuid mib <"$D/mps/gpus"
        limits="CUDA_VISIBLE_DEVICES=$uuid CUDA_MPS_PIPE_DIRECTORY=$D/mps/0 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=${mib}M"
    fi
    : >"$LOGS/server.log"
    # shellcheck disable=SC2086
    $clean $limits setsid $guarded $run >>"$LOGS/server.log" 2>&1 </dev/null &
    server=$!
    say "starts the server of $SERVICE_NAME at port $SERVICE_HTTP_PORT"
}

# leave MODE CODE REASON WHY: ask the server to go; the loop waits for it.
leave() {
    [ "$leaving" != QUIT ] || return
    leaving=$1 leave_code=$2 leave_reason=$3 leave_why=$4
    say "leaves: $3: $4"
    leave_by=$now
    [ "$1" = QUIT ] || leave_by=$((now + (DRONE_GRACE_S > 2 ? DRONE_GRACE_S - 2 : 0)))
    note_shared_memory
    # Its own processes hear it from the server: what it still works on needs them.
    kill -TERM "$server" 2>/dev/null
}

said_by_server() { cat "$LOGS/server.log.1" "$LOGS/server.log" 2>/dev/null | tail -n 3; }

# The server appends to its log, so that the file can be emptied.
limit_log() {
    [ "$(wc -c <"$LOGS/server.log")" -gt $((SERVICE_LOG_KIB * 1024)) ] || return 0
    tail -c $((SERVICE_LOG_KIB * 1024)) "$LOGS/server.log" >"$LOGS/server.log.1"
    : >"$LOGS/server.log"
}

# -------------------------------------------------------------------------------------------------------------- main
rm -rf "$D" outcome
mkdir -p "$D/tmp"
clean="env HOME=$D TMPDIR=$D/tmp"
check_first
mps_parts=1
[ "$DRONE_SHARING" != mps ] || start_mps
choose_guard
refuse_taken_ports
checker='' checked_at=$now
start_server
while alive "$server"; do
    if [ -n "$leaving" ]; then
        [ "$asked" != QUIT ] || leave QUIT "$leave_code" "$leave_reason" "$leave_why, then told to hurry"
        [ "$now" -lt "$leave_by" ] || break
        rest 0.2
    elif [ -n "$asked" ]; then
        leave "$asked" $OK stopped "told to leave by SIG$asked"
    elif [ "$DRONE_WALLTIME_S" -gt 0 ] && [ $((began + DRONE_WALLTIME_S - now)) -le "$DRONE_GRACE_S" ]; then
        leave TERM $OK walltime "the end of its $DRONE_WALLTIME_S s"
    else
        check_again
        limit_log
        rest 1
    fi
done
now=$(uptime_s)
if [ -z "$leaving" ]; then
    wait "$server"
    code=$?
    [ $code -le 128 ] || finish $NOT_STARTED server-died "the server ended by signal $((code - 128)): $(said_by_server)"
    finish $NOT_STARTED server-died "the server ended with status $code: $(said_by_server)"
fi
[ -z "$mps" ] || quit_mps
# A server that a shell runs in the background of its command outlives that shell.
[ "$now" -ge "$leave_by" ] || push TERM
while [ "$now" -lt "$leave_by" ] && push 0; do rest 0.2; done
finish "$leave_code" "$leave_reason" "$leave_why"
