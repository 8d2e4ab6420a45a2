# Verbs on drones as directories below a root: sh -c THIS sh ROOT CONTROLLER VERB ARGUMENT...
set -u; umask 077
mkdir -p "$1/$2" && cd "$1" || exit
ours=$2 verb=$3; shift 3
lives() { ! flock -n "$1/lock" true; }
ended() { if [ -e "$1/started" ]; then ! lives "$1"; else [ -e "$1/stopped" ]; fi; }
end() {
    while { ! lives "$ours/$1" || kill -9 "$(cat "$ours/$1/pid")"; } 2>/dev/null
        pids=$(grep -lzx "PROVISIONER_DRONE_ID=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); [ "$pids" ]
    do kill -9 $pids 2>/dev/null; sleep 0.05; done
}
case $verb in
list)
    for d in "$ours"/*/; do
        [ -e "$d/type" ] || continue
        state=pending; ended "$d" && state=ended || { [ -e "$d/started" ] && state=running; }
        kind=exited; [ -e "$d/stopped" ] && kind=stopped
        began=$(stat -c %Y "$d/started" || echo 0) over=$(stat -c %Y "$d/exit" "$d/stopped" "$d/started" | head -n 1)
        line="$(basename "$d") $(cat "$d/type") $state $began $kind ${over:-0} $(cat "$d/exit" || echo -)"
        [ -e "$d/type" ] && echo "$line"     # it may have been forgotten meanwhile
    done 2>/dev/null ;;
start)
    new=$(mktemp -d .new.XXXXXX) || exit
    trap 'rm -rf "$new"' EXIT
    tar -xm -C "$new" && mkdir -p "$new/work" || exit   # fails if the connection was cut: nothing was done
    exec 8>lock && flock 8 || exit           # one start at a time
    if [ ! -e "$ours/$1" ]; then
        used=" $(for d in */*/; do ended "$d" || cat "$d/gpus"; done 2>/dev/null | tr '\n' ' ') "
        free= count=0 n=0
        while [ $n -lt "$4" ] && [ $count -lt "$3" ]; do
            case $used in *" $n "*) ;; *) free="$free $n" count=$((count + 1)) ;; esac
            n=$((n + 1))
        done
        [ $count -ge "$3" ] || { echo full; echo end; exit; }
        echo "$2" >"$new/type"; echo $free >"$new/gpus"
        echo "export DRONE_DIR='$PWD/$ours/$1/work' CUDA_VISIBLE_DEVICES=$(echo $free | tr ' ' ,)" >>"$new/env"
        mv "$new" "$ours/$1" || exit
    fi
    if [ ! -e "$ours/$1/started" ]; then
        setsid sh "$PWD/$ours/$1/launcher" </dev/null >/dev/null 2>&1 8>&- &
    fi ;;
stop)
    if [ -e "$ours/$1" ] && ! ended "$ours/$1"; then
        : >"$ours/$1/stopped" || exit
        if [ "$2" = 1 ]; then end "$1"; else
            lives "$ours/$1" && kill "$(cat "$ours/$1/pid")" 2>/dev/null
            ( trap '' HUP; sleep "$(cat "$ours/$1/grace")"; end "$1" ) </dev/null >/dev/null 2>&1 &
        fi
    fi ;;
forget) for id; do ended "$ours/$id" && mv "$ours/$id" ".old.$id" && rm -rf ".old.$id"; done ;;
esac
echo end
