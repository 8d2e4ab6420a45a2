# Time and processes of a drone script. Needs DRONE_ID, and $D for output; asked, finish and OK.
uptime_s() { read -r up _ </proc/uptime; echo "${up%.*}"; }   # a clock that nobody sets
began=$(uptime_s)
now=$began

# alive PID: it runs. (A child that has ended and was not waited for still has a pid: state Z.)
alive() {
    { read -r _ _ state _ <"/proc/$1/stat"; } 2>/dev/null || return 1
    [ "$state" != Z ]
}

# child_of PID NAME: the pid of its child of that name.
child_of() {
    for stat in /proc/[0-9]*/stat; do
        { read -r pid name _ parent _ <"$stat"; } 2>/dev/null || continue
        if [ "$parent" = "$1" ] && [ "$name" = "($2)" ]; then echo "$pid"; return; fi
    done
}

# carriers: pids that carry our id, without this script and those that it was started by.
carriers() {
    kin=" "
    each=$$
    while [ "${each:-0}" -gt 1 ]; do
        kin="$kin$each "
        each=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$each/status" 2>/dev/null)
    done
    grep -ls "PROVISIONER_DRONE_ID=$DRONE_ID" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ each _; do
        case $kin in *" $each "*) continue ;; esac
        tr '\0' '\n' 2>/dev/null <"/proc/$each/environ" | grep -qx "PROVISIONER_DRONE_ID=$DRONE_ID" && echo "$each"
    done
}
# push SIGNAL [NAME]: to every process of ours (whose name begins so); false if there is none.
push() {
    pushed=1
    for each in $(carriers); do
        alive "$each" || continue     # or it was a part of this very search
        case $(cat "/proc/$each/comm" 2>/dev/null) in "${2:-}"*) ;; *) continue ;; esac
        kill -"$1" "$each" 2>/dev/null && pushed=0
    done
    return $pushed
}

# HTCondor first: a starter that outlives its job tells the pool that the job has ended, by the signal that killed it.
kill_all() {
    push KILL condor_
    limit=$((now + 5))
    while push KILL && [ "$now" -lt $limit ]; do rest 0.2; done
}

# Sleep so that a signal is seen at once: a shell runs its traps only between commands, or in `wait`.
rest() {
    sleep "$1" &
    wait $!
    now=$(uptime_s)
}

# ask_driver LIMIT_S COMMAND...: run a command that asks the driver, with its output in $D/said. One that hangs in the
# kernel cannot be killed: it is left behind, and does not keep the drone from leaving.
ask_driver() {
    now=$(uptime_s)
    late_at=$((now + $1))
    shift
    "$@" >"$D/said" 2>"$D/said.err" </dev/null &
    child=$!
    while alive $child; do
        if [ -n "$asked" ] || [ "$now" -ge $late_at ]; then
            kill -KILL $child 2>/dev/null
            [ -z "$asked" ] || finish $OK stopped "told to leave while the driver was asked"
            echo "the driver does not answer" >"$D/said"
            return 124
        fi
        rest 0.1
    done
    wait $child
}
said_by_driver() { cat "$D/said.err" "$D/said" | tail -n 1; }
