#!/bin/sh
# Keeps one drone of the local site, with or without a controller: claims its directory, runs its script,
# passes on the request to leave, ends what is left after the grace, writes down how it ended.
#
#   launcher.sh DIRECTORY GRACE_S [ACCOUNT]     in a session of its own, with PROVISIONER_DRONE_ID in the environment
#
# With ACCOUNT the drone runs under that account, by sudo; its directory and its script are that account's. Nobody else may
# signal what sudo runs, so that account does.
#
# Files in DIRECTORY/.site:  launcher  "pid start boot" of this process, made once: the claim
#                            end       "exited CODE", made when no process of the drone is left

directory=$1
grace_s=$2
account=$3
site=$directory/.site
[ -n "$account" ] || cd "$directory/drone" || exit 1

# A shell cannot ask for its own start time, but it can read it: fields after the name begin with the third.
read -r stat < /proc/$$/stat
set -- ${stat##*) }
shift 19
start=$1
read -r boot < /proc/sys/kernel/random/boot_id

child= caught= asked= timer=

# as_account COMMAND...: run it as the drone's account.
as_account() {
    [ -z "$account" ] || set -- sudo -n -H -u "$account" -- "$@"
    "$@"
}

end_after_grace() {
    sleep "$grace_s"
    as_account kill -s KILL -- "-$child" 2>/dev/null
}

# The script's process: our child, or the one below sudo that wrote down its number.
ask_script() {
    if [ -n "$account" ]; then
        # shellcheck disable=SC2016
        as_account sh -c 'kill -s TERM "$(cat "$1")"' sh "$directory/drone/pid"
    else
        kill -s TERM "$child"
    fi
}

run_script() {
    [ -n "$account" ] || exec setsid sh "$site/script"
    # shellcheck disable=SC2016
    exec setsid sudo -n -H -u "$account" -- sh -c \
        'cd "$1" && echo $$ >pid && . ./environment && rm -f environment && exec sh ./script' sh "$directory/drone"
}

# Those of the account first, which may read this file only as a text that it is given.
kill_all() {
    if [ -n "$account" ]; then
        # shellcheck disable=SC2016
        { cat "$here/tagged.sh"; echo 'kill_tagged "$1"'; } | as_account sh -s "$PROVISIONER_DRONE_ID" || return
    fi
    kill_tagged "$PROVISIONER_DRONE_ID"
}

leave() {
    caught=1 asked=1
    [ -n "$child" ] || return 0
    ask_script 2>/dev/null
    [ -n "$timer" ] && return 0
    end_after_grace &
    timer=$!
}

here=${0%/*}/../shared
. "$here/tagged.sh" || exit 1 # kill_tagged, wait_for
trap leave TERM INT

# A hard link is made with its content or not at all; of two launchers, or a launcher and a clean-up, one gets it.
echo "$$ $start $boot" > "$site/launcher.$$" || exit 1
ln "$site/launcher.$$" "$site/launcher" 2>/dev/null || { rm -f "$site/launcher.$$"; exit 0; }
rm -f "$site/launcher.$$"

code=143
if [ -z "$asked" ]; then
    run_script &
    child=$!
    [ -z "$asked" ] || leave
    wait_for "$child"
    [ -z "$timer" ] || kill -s KILL "$timer" 2>/dev/null
    as_account kill -s KILL -- "-$child" 2>/dev/null
fi

[ -z "$account" ] || as_account tail -c 1000 "$directory/drone/outcome" >"$site/outcome" 2>/dev/null
kill_all || exit 1 # no end while something lives: the site's listing goes on trying
echo "exited $code" > "$site/end.$$" && mv "$site/end.$$" "$site/end"
