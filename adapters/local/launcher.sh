#!/bin/sh
# Keeps one drone of the local site, with or without a controller: claims its directory, runs its script,
# passes on the request to leave, ends what is left after the grace, writes down how it ended.
#
#   launcher.sh DIRECTORY GRACE_S        in a session of its own, with PROVISIONER_DRONE_ID in the environment
#
# Files in DIRECTORY/.site:  launcher  "pid start boot" of this process, made once: the claim
#                            end       "exited CODE", made when no process of the drone is left

directory=$1
grace_s=$2
site=$directory/.site
cd "$directory/drone" || exit 1

# A shell cannot ask for its own start time, but it can read it: fields after the name begin with the third.
read -r stat < /proc/$$/stat
set -- ${stat##*) }
shift 19
start=$1
read -r boot < /proc/sys/kernel/random/boot_id

child= caught= asked= timer=

end_after_grace() {
    sleep "$grace_s"
    kill -s KILL -- "-$child" 2>/dev/null
}

leave() {
    caught=1 asked=1
    [ -n "$child" ] || return 0
    kill -s TERM "$child" 2>/dev/null
    [ -n "$timer" ] && return 0
    end_after_grace &
    timer=$!
}

. "${0%/*}/../shared/tagged.sh" || exit 1 # kill_strays, wait_for
trap leave TERM INT

# A hard link is made with its content or not at all; of two launchers, or a launcher and a clean-up, one gets it.
echo "$$ $start $boot" > "$site/launcher.$$" || exit 1
ln "$site/launcher.$$" "$site/launcher" 2>/dev/null || { rm -f "$site/launcher.$$"; exit 0; }
rm -f "$site/launcher.$$"

code=143
if [ -z "$asked" ]; then
    setsid sh "$site/script" &
    child=$!
    [ -z "$asked" ] || leave
    wait_for "$child"
    [ -z "$timer" ] || kill -s KILL "$timer" 2>/dev/null
    kill -s KILL -- "-$child" 2>/dev/null
fi

kill_strays "$PROVISIONER_DRONE_ID" || exit 1 # no end while something lives: the site's listing goes on trying
echo "exited $code" > "$site/end.$$" && mv "$site/end.$$" "$site/end"
