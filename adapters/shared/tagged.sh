# For the scripts that keep a drone: its processes are those that carry its tag.

# kill_tagged ID: end them, however they left the process group, and except this shell; false if something lives on.
kill_tagged() {
    round=0
    while [ "$round" -lt 50 ]; do
        found=
        for environ in $(env -i "PATH=$PATH" \
            grep -Flxz -e "PROVISIONER_DRONE_ID=$1" /proc/[0-9]*/environ 2>/dev/null); do
            pid=${environ#/proc/}
            pid=${pid%/environ}
            [ "$pid" = "$$" ] && continue
            kill -s KILL "$pid" 2>/dev/null && found=1
        done
        [ -n "$found" ] || return 0
        round=$((round + 1))
        [ "$round" -lt 3 ] || sleep 0.1
    done
    return 1
}

# wait_for PID: its exit status, in $code. A trap that sets `caught` has ended the wait, and not the child.
wait_for() {
    caught=
    wait "$1"
    code=$?
    while [ -n "$caught" ]; do
        caught=
        wait "$1"
        again=$?
        [ "$again" = 127 ] || code=$again
    done
}
