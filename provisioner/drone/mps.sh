#!/bin/sh
# mps.sh check | watch | end: the drone's MPS control daemons, one for each of its GPUs.
#
# check: exit 0 if each daemon is ours, keeps its limit of memory, and has a server that lives with this limit; else the
#   last line says why, and the exit status is 3 while a server may still come up.
# watch: the same as slot attributes for STARTD_CRON, with the faults of clients; starts a server that died again.
# end: end the work of all clients, so that killing their processes does no harm to the server.
#
# The exit status of nvidia-cuda-mps-control says only that a daemon answered: it is 0 for an unknown command, for a
# limit that is no number and for a device that does not exist. So each setting is read back.
# condor/mps/gpus has a line for each GPU: number, HTCondor's id, UUID, limit of memory in MiB. The number is the name of
# its directory of sockets, and of its logs (log/mps-NUMBER).

set -u
D=${DRONE_DIR:-.}/condor
gpus=$D/mps/gpus
uid=$(id -u)

ask() { echo "$1" | CUDA_MPS_PIPE_DIRECTORY=$D/mps/$number timeout -k 1 5 nvidia-cuda-mps-control 2>&1; }
# uid_of PID: of a process that lives.
uid_of() { sed -n '/^State:[[:space:]]*Z/q; s/^Uid:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$1/status" 2>/dev/null; }
log() { echo "${DRONE_DIR:-.}/log/mps-$number/$1.log"; }
servers() { ask get_server_list | grep -x '[0-9][0-9]*'; }

# judge: the verdict on one GPU ($number, $mib). 0: good; 1: bad; 2: recovers from a fault; 3: comes up, or none lives.
judge() {
    pid=
    { read -r pid <"$D/mps/$number/nvidia-cuda-mps-control.pid"; } 2>/dev/null
    case $pid in '' | *[!0-9]*) echo "there is no MPS control daemon"; return 1 ;; esac
    owner=$(uid_of "$pid")
    [ -n "$owner" ] || { echo "the MPS control daemon has gone"; return 1; }
    [ "$owner" = "$uid" ] || { echo "the MPS control daemon belongs to uid $owner, not to $uid"; return 1; }
    answer=$(ask get_server_list) ||
        { echo "the MPS control daemon does not answer: $(echo "$answer" | tail -n 1)"; return 1; }
    limit=$(ask 'get_default_device_pinned_mem_limit 0')
    case $limit in      # it reads back whole G
        "$((mib / 1024))G" | "${mib}M") ;;
        *) echo "the limit of memory of the MPS control daemon reads '$limit' instead of ${mib}M"; return 1 ;;
    esac
    server=$(echo "$answer" | grep -x '[0-9][0-9]*' | tail -n 1)
    if [ -z "$server" ] || [ "$(uid_of "$server")" != "$uid" ]; then
        died=$(grep -s 'Server [0-9]* exited with status' "$(log control)" | tail -n 1)
        echo "no MPS server lives${died:+: ${died#*] }}"
        return 3
    fi
    status=$(ask "get_server_status $server")
    case $status in
        ACTIVE) ;;
        FAULT) echo "the MPS server recovers from the fault of a client"; return 2 ;;
        INITIALIZING) echo "the MPS server initializes"; return 3 ;;
        '') echo "the MPS server reports no state: its programs need the version of the driver"; return 1 ;;
        *) echo "the MPS server says '$status'"; return 1 ;;
    esac
    set_to=$(sed -n "s/^\[[^]]* $server\] Device pinned memory limit for device 0 set to \(0x[0-9a-fA-F]*\).*/\1/p" \
        "$(log server)" 2>/dev/null | tail -n 1)
    [ -n "$set_to" ] || { echo "the log of the MPS server has no limit of memory"; return 3; }
    [ $((set_to)) -eq $((mib * 1048576)) ] ||
        { echo "the MPS server has a limit of memory of $((set_to / 1048576)) MiB instead of $mib MiB"; return 1; }
}

check() {
    worst=0
    while read -r number id _ mib; do
        said=$(judge)
        case $? in
            0) ;;
            2) echo "$id: $said" ;;        # acceptance ends by `watch`; the drone goes on
            3) echo "$id: $said"; [ $worst -eq 1 ] || worst=3 ;;
            *) echo "$id: $said"; exit 1 ;;
        esac
    done <"$gpus"
    [ $worst -ne 0 ] || echo "each GPU has an MPS server with its limit of memory"
    exit $worst
}

# ------------------------------------------------------------------------------------------------------------- faults
# The job wrapper writes a line for each job to condor/mps/jobs/DIRECTORY: number of its GPU, GlobalJobId, Owner and, when
# it has ended, the time.

# jobs_since TIME: GlobalJobId and owner of the jobs that this GPU had at TIME or later.
jobs_since() {
    for file in "$D"/mps/jobs/*; do
        directory=${file##*/}
        read -r on job owner ended 2>/dev/null <"$file" || continue
        if [ ! -d "$D/execute/$directory" ] && [ "${ended:-0}" -lt $((now - 600)) ]; then rm -f "$file"; continue; fi
        [ "$on" = "$number" ] && [ "${ended:-$now}" -ge "$1" ] && echo "$job $owner"
    done
}

# note_faults STATE: of a fault that is new in the log (or that the server says it has), record each job that ran.
note_faults() {
    before=0 last=0 state=
    { read -r before last state <"$D/mps/$number.seen"; } 2>/dev/null
    size=$(wc -c 2>/dev/null <"$(log server)") || size=0
    [ "$before" -le "$size" ] || before=0
    new=$(tail -c "+$((before + 1))" "$(log server)" 2>/dev/null | grep -iE 'fatal|fault' | grep -vi default)
    at=$(echo "$new" | sed -n '1s/^\[\([-0-9]* [0-9:]*\).*/\1/p')
    new=$(echo "$new" | sed 's/^\[[^]]*\] *//')
    [ "$1" != bad ] || set -- "$state"          # it says nothing about clients
    echo "$size $now $1" >"$D/mps/$number.seen"
    case $1:$state in
        *:recovers | dead:dead) return ;;       # recorded when it began
        recovers:* | dead:ready) ;;
        *) [ -n "$new" ] || return ;;
    esac
    # Where the log is ahead of the server's state, that is still to come.
    echo "$size $now recovers" >"$D/mps/$number.seen"
    # A job that ended before the fault is no victim of it.
    since=$((last - 2))
    at=$(date -d "${at:-none}" +%s 2>/dev/null) && [ "$at" -gt "$since" ] && [ "$at" -le "$now" ] && since=$at
    ran=$(jobs_since "$since")
    [ -n "$ran" ] || return
    # Of several jobs none is known to be the cause: the first client that the log names need not be it, and a job can
    # write there, and into these files, what it likes.
    how=faulted
    [ "$(echo "$ran" | grep -c .)" -eq 1 ] || how=collateral
    echo "$ran" | while read -r job owner; do echo "$now|$job|$owner|$how"; done >>"$D/mps/faults"
}

watch() {
    now=$(date +%s)
    # Nothing new in a log, and no daemon or server less: ask again only every two minutes (each question makes a line in
    # control.log).
    trace=$((now / 120))
    while read -r number _; do
        trace="$trace $(wc -c 2>/dev/null <"$(log server)")"
        { read -r pid <"$D/mps/$number/nvidia-cuda-mps-control.pid"; } 2>/dev/null
        for pid in ${pid:-none} $(cat "$D/mps/$number.server" 2>/dev/null); do trace="$trace $pid $(uid_of "$pid")"; done
    done <"$gpus"
    if [ "$trace" = "$(cat "$D/mps/trace" 2>/dev/null)" ]; then cat "$D/mps/ad"; return; fi
    ready=True why=
    while read -r number id _ mib; do
        said=$(judge)
        case $? in
            0) state=ready ;;
            2) state=recovers ;;
            3) state=dead; [ -n "$(servers)" ] || ask "start_server -uid $uid" >/dev/null ;;
            *) state=bad ;;
        esac
        [ $state = ready ] || ready=False why="${why:-$id: $said}"
        servers >"$D/mps/$number.server"
        note_faults $state
    done <"$gpus"
    {
        echo "DroneMpsReady = $ready"
        echo "DroneMpsWhy = \"$(echo "$why" | tail -n 1 | sed 's/[^[:print:]]//g; s/["\\]//g' | cut -c 1-300)\""
        echo "DroneFaults = \"$(tail -n 10 "$D/mps/faults" 2>/dev/null | tr '\n' ' ' | sed 's/["\\]//g; s/ *$//')\""
        echo '-'
    } >"$D/mps/ad"
    # While it is not ready, and at first, look each time.
    if [ $ready = True ]; then echo "$trace" >"$D/mps/trace"; else rm -f "$D/mps/trace"; fi
    cat "$D/mps/ad"
}

end() {
    while read -r number _; do end_clients & done <"$gpus"
    wait
}
end_clients() {
    for server in $(servers); do
        for client in $(ask "get_client_list $server" | grep -x '[0-9][0-9]*'); do
            ask "terminate_client $server $client" >/dev/null
        done
    done
}

[ -r "$gpus" ] || { echo "there is no MPS here"; exit 1; }
case ${1:-} in
    check) check ;;
    watch) watch ;;
    end) end ;;
    *) exit 64 ;;
esac
