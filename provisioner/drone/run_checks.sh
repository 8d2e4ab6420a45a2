#!/bin/sh
# run_checks.sh DIR STATE LIMIT_S [ad]: run every check in DIR, each in a session of its own and with a time limit.
#
# A check is a program; its last line of output says why it failed. Exit 0: good; 77: nothing to check; else: failed.
# A line "# limit: N" among its first ten overrides LIMIT_S. One that is late is killed; one that cannot be killed
# (a driver that hangs) is left behind, and is a verdict all the same: nothing here waits for it.
# STATE gets one line, `ok`, `failed NAME: why` or `hung NAME: why`. Exit 0, 71 (failed), 72 (hung).
# With `ad`: prints the verdict as slot attributes, for STARTD_CRON, and always exits 0.

set -u
dir=$1 state=$2 limit_s=$3 form=${4:-}
here=${TMPDIR:-/tmp}
work=$(mktemp -d "$here/checks.XXXXXX") || exit 71
pid=
trap 'rm -rf "$work"' EXIT
trap '[ -z "$pid" ] || kill -KILL -- "-$pid" "$pid" 2>/dev/null; exit 71' TERM INT HUP

pause() { sleep 0.1 2>/dev/null || sleep 1; }
seconds() { read -r up _ </proc/uptime; echo "${up%.*}"; }

# run_one FILE: the verdict of one check, as a line in $work/verdict if it is not good.
run_one() {
    name=$(basename "$1"); name=${name%.*}
    own=$(head -n 10 "$1" 2>/dev/null | tr -d '\000' | sed -n 's/^# limit: \([0-9][0-9]*\)$/\1/p' | head -n 1)
    late_at=$(($(seconds) + ${own:-$limit_s}))
    rm -f "$work/exit"
    # A file that a site wrote need not be executable. Its exit status comes by file: a shell cannot wait with a limit.
    # shellcheck disable=SC2016
    setsid sh -c 'if [ -x "$1" ]; then "$1"; else sh "$1"; fi >"$2/said" 2>&1 </dev/null; echo $? >"$2/exit.new"
        mv "$2/exit.new" "$2/exit"' check "$1" "$work" &
    pid=$!
    while [ ! -e "$work/exit" ]; do
        if [ "$(seconds)" -gt "$late_at" ]; then
            kill -KILL -- "-$pid" 2>/dev/null
            echo "hung $name: no answer within ${own:-$limit_s} s" >"$work/verdict"
            return 72
        fi
        pause
    done
    wait "$pid" 2>/dev/null
    read -r status <"$work/exit"
    why=$(tail -n 1 "$work/said" | sed 's/[^[:print:]]//g' | cut -c 1-300)
    case $status in
        0) ;;
        77) [ -n "$form" ] || echo "drone: check $name skipped: $why" >&2 ;;
        *) echo "failed $name: ${why:-exit $status}" >"$work/verdict"; return 71 ;;
    esac
    return 0
}

echo ok >"$work/verdict"
code=0
for file in "$dir"/*; do
    [ -f "$file" ] || continue
    run_one "$file" || { code=$?; break; }
done
cp "$work/verdict" "$state.new" && mv "$state.new" "$state"
[ "$form" = ad ] || exit "$code"
if [ "$code" = 0 ]; then
    echo 'DroneHealthy = True'
else
    echo 'DroneHealthy = False'
    echo "DroneUnhealthy = \"$(sed 's/["\\]//g' "$work/verdict")\""
fi
echo '-'
