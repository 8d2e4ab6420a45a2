# Root runs no drone. Goes on as $DRONE_USER, with the files of the drone ($own_files and what every drone has).
if [ "$(id -u)" = 0 ]; then
    account=${DRONE_USER:-nobody}
    command -v setpriv >/dev/null || refuse "root must not run this, and setpriv, to go on as $account, is missing"
    case $account in '' | *[!a-z0-9_-]* | root) refuse "DRONE_USER is not an ordinary account: '$account'" ;; esac
    uid=$(id -u "$account" 2>/dev/null) || refuse "there is no account $account (DRONE_USER)"
    gid=$(id -g "$account")
    # Its directory and what the overlay put there, not what the site keeps for itself; a copy of this script, which
    # may be root's alone.
    rm -rf "$DRONE_DIR/condor"
    { mkdir "$DRONE_DIR/condor" && cp "$0" "$DRONE_DIR/condor/drone.sh"; } || refuse "cannot copy $0 to $DRONE_DIR"
    cd "$DRONE_DIR" || refuse "cannot enter $DRONE_DIR"
    chown "$uid:$gid" . || refuse "cannot give $DRONE_DIR to $account"
    for mine in condor $own_files checks log; do
        case $mine in /*) continue ;; esac      # not ours to give away
        [ ! -e "$mine" ] || chown -R "$uid:$gid" "$mine" || refuse "cannot give $mine to $account"
    done
    as_account="setpriv --reuid=$uid --regid=$gid --clear-groups"
    $as_account test -x "$DRONE_DIR/." || refuse "account $account cannot enter $DRONE_DIR: open the directories above it"
    # shellcheck disable=SC2086
    exec $as_account sh condor/drone.sh
fi
