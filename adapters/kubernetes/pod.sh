# The container of a drone: it unpacks the drone's files from its secret, runs the drone, and reports how it ended.
umask 077
say() { echo "drone pod: $*" >&2; }
child= asked= code=143
leave() {
    asked=1
    [ -z "$child" ] || kill -s TERM "$child" 2>/dev/null
}
trap leave TERM INT
work=${DRONE_WORK:-/drone/work}
dir=$work/drone
mkdir "$dir" && cd "$dir" || { say "cannot work in $work"; exit 69; }
gzip -d <"${DRONE_FILES:-/drone/files}/files.tar.gz" | tar -xmof -
[ -e .site/whole ] || { say "its files cannot be unpacked"; exit 70; }
if [ -z "$asked" ]; then
    HOME=$dir DRONE_DIR=$dir sh .site/step </dev/null &
    child=$!
    [ -z "$asked" ] || leave
    while :; do
        wait "$child"
        code=$?
        kill -s 0 "$child" 2>/dev/null || break
    done
fi
if [ "$code" != 0 ]; then
    for log in log/*; do
        [ -f "$log" ] && [ ! -L "$log" ] || continue
        echo "--- $log"
        tail -n 30 "$log"
    done >&2
fi
if [ -f outcome ] && [ ! -L outcome ]; then
    head -n 1 outcome | cut -c 1-2000 2>/dev/null >"${DRONE_TERMINATION_LOG:-/dev/termination-log}"
    head -n 1 outcome | cut -c 1-2000
fi
exit "$code"
