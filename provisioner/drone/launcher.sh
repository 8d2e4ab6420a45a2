# Runs the drone of this directory once, holds a lock while it runs, and writes down how it ended.
cd "${0%/*}" && exec 9>lock && flock -w 5 9 || exit
[ -e stopped ] && exit
mkdir started 2>/dev/null || exit            # it has run before: one directory is one drone
( . ./env; cd work; exec setsid sh ../script ) </dev/null >log 2>&1 9>&- &
echo $! >pid
[ -e stopped ] && kill -9 $!                 # stopped before there was a process to stop
wait $!; code=$?
while pids=$(grep -lzx "PROVISIONER_DRONE_ID=${PWD##*/}" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); [ "$pids" ]
do kill -9 $pids 2>/dev/null; sleep 0.05; done
echo $code >exit.new && mv exit.new exit
