# What follows runs in the server, by root, at the end of its first boot (cloud-init calls it a user-data script). Above
# it stand `drone_id`, `scratch`, `setup` (empty: there is none), `walltime_s` (0: without end), `grace_s`, `setup_s`,
# `slack_s`, PATH, `root` (before all paths of the system, empty but in tests), and `files`, which writes a compressed
# tar archive of the drone's files to its standard output; and what the scripts of all sites share (tagged.sh).
#
#   user_data          as cloud-init runs it; under systemd it becomes a service and is done
#   user_data MARK     as that service
#
# What it leaves in MARK, /var/lib/gpu-drone/<drone id>, tells later boots that the drone has had its life.
umask 077
export PATH
run=$root/run/gpu-drone
mark=${1-}
asked='' caught='' told='' child='' watch='' systemd=''
[ -d "$root/run/systemd/system" ] && command -v systemctl >/dev/null && systemd=1
cd /

# ------------------------------------------------------------------------------------------------------ what people see
# Its output is on the console already, as cloud-init's or the service's; to be sure it also says itself what matters.
# Clouds keep what a serial port says, and the console need not be one.
consoles=
[ -n "$mark" ] || [ ! -w "$root/dev/console" ] || consoles=$root/dev/console
active=$(cat "$root/sys/class/tty/console/active" 2>/dev/null)
case ${active##* } in
    tty[A-Z]* | hvc*) ;;
    *)
        for each in ttyS0 ttyAMA0; do
            [ ! -w "$root/dev/$each" ] || consoles="$consoles $root/dev/$each"
        done
        ;;
esac

# show: its standard input, and last where the reader may have gone. A terminal may be stopped, and must not stop us.
show() {
    text=$(cat)
    for console in $consoles; do
        printf '%s\n' "$text" | timeout -s KILL 10 sh -c 'cat >>"$1"' sh "$console" 2>/dev/null
    done
    printf '%s\n' "$text"
}
say() { echo "gpu-drone: $*" | show; }

# clean: what others have written, in plain characters and without tokens.
clean() {
    LC_ALL=C tr -c ' -~\n' '?' | sed 's/eyJ[A-Za-z0-9_=-]\{12,\}[A-Za-z0-9_.=-]*/(token)/g' | cut -c 1-"$1"
}

# verdict CODE WORDS: the line that the site looks for. Nothing else that is shown may begin like it.
verdict() { echo "=== drone $drone_id exit=$1 $2 ==="; }

# Files of the drone's account, read by root: no links.
outcome() { [ ! -f outcome ] || [ -L outcome ] || head -n 1 outcome | clean 2000; }
logs() {
    [ -d log ] && [ ! -L log ] || return 0
    for log in log/*; do
        [ -f "$log" ] && [ ! -L "$log" ] || continue
        { echo "--- $log" | tr '\n' ' '; echo; } | clean 200
        tail -n 30 "$log" | clean 200 | sed 's/^/| /'
    done
}

# -------------------------------------------------------------------------------------------------------- switching off
# power_off [-f]: -f waits for nobody. False if nothing here can.
power_off() {
    [ -n "$systemd" ] && systemctl poweroff "$@" && return 0
    command -v poweroff >/dev/null && poweroff "$@" && return 0
    [ $# = 0 ] && command -v shutdown >/dev/null && shutdown -h now
} >/dev/null 2>&1

# switch_off CODE: systemd sees to the rest once we are gone; any other init ends us, unless it hangs.
switch_off() {
    trap - TERM INT
    if ! power_off; then
        power_off -f
    elif [ -z "$systemd" ]; then
        sleep "$slack_s"
        power_off -f
    fi
    [ -z "$watch" ] || kill -s KILL "$watch" 2>/dev/null
    exit "$1"
}

# finish CODE WORDS: nothing of the drone is left but its verdict.
finish() {
    trap : TERM INT
    code=$1 words=${2-}
    no_later_than "$((2 * slack_s))"
    kill_tagged "$drone_id"
    words=${words:-$(outcome)}
    [ "$code" = 0 ] || logs | show
    cd /
    [ -z "${home-}" ] || rm -rf "$home"
    words=$(verdict "$code" "${words:-no outcome}")
    echo "$words" | tee "$run/verdict" >"$mark/verdict"
    printf '%s\n' "$words" "$words" | show # twice: the kernel may speak within the first
    switch_off "$code"
}

# ------------------------------------------------------------------------------------------------------ its last moment
# By the clock that also counts while the machine is suspended.
no_later_than() {
    read -r up _ </proc/uptime
    echo "$((${up%%.*} + 1 + $1))" >"$run/end.new" && mv "$run/end.new" "$run/end"
} 2>/dev/null

# At the moment that no_later_than says what is left of the drone is killed, so that the script goes on; if then it does
# not come to its end either, or is itself gone, the machine is switched off.
watching() {
    trap '' TERM INT
    late=0
    while [ "$late" -lt 2 ]; do
        end=0
        read -r end <"$run/end"
        read -r up _ </proc/uptime
        if ! kill -s 0 "$$"; then
            late=2
        elif [ "${up%%.*}" -lt "${end:-0}" ]; then
            sleep 1 >/dev/null
        else
            late=$((late + 1))
            no_later_than "$((2 * slack_s))"
            kill_tagged "$drone_id"
        fi
    done 2>/dev/null
    power_off
    [ -s "$run/verdict" ] || verdict 137 "reason=lost why=what%20keeps%20it%20hung%20or%20was%20killed" | show
    sleep "$slack_s" >/dev/null
    power_off -f
    kill -s KILL "$$"
}

# Told to leave: by systemd at a shutdown, or by who sends it a signal.
leave() {
    caught=1 asked=1
    tell
}
tell() {
    [ -n "$child" ] && [ -z "$told" ] || return 0
    told=1
    no_later_than "$grace_s"
    kill -s TERM "$child" 2>/dev/null
}
# wait_or_tell PID: its exit status, in $code; told to leave it is told as well.
wait_or_tell() {
    child=$1
    [ -z "$asked" ] || tell
    wait_for "$child"
    child=
}

# ------------------------------------------------------------------------------------------------------------- one life
instance() { cat "$root/var/lib/cloud/data/instance-id" 2>/dev/null; }

# Started again: the drone's secrets are old, and nobody has asked for it. An image that was made of this server, with
# all that is on it, is no concern of ours.
again() {
    [ "$(cat "$mark/instance" 2>/dev/null)" = "$(instance)" ] || exit 0
    say "the server was started again, and a drone lives once"
    [ -s "$mark/verdict" ] || verdict 143 "reason=stopped why=its%20server%20was%20restarted" >"$mark/verdict"
    show <"$mark/verdict"
    switch_off 0
}

# cloud-init runs user data once for an instance, but what is in per-boot at each boot: there goes what is above and
# below, without the files.
begin() {
    kept=$root/var/lib/gpu-drone
    mkdir -p "$kept" 2>/dev/null && [ -w "$kept" ] || kept=$scratch/gpu-drone
    mkdir -p "$kept"
    mark=$kept/$drone_id
    command -v files >/dev/null || [ -d "$mark" ] || exit 0
    if ! mkdir "$mark" 2>/dev/null; then
        [ ! -d "$mark" ] || again
        verdict 69 "cannot write in $kept" | show
        switch_off 69
    fi
    instance >"$mark/instance"
    boots=$root/var/lib/cloud/scripts/per-boot
    [ -d "$boots" ] || return 0
    sed '/^files() {$/,/^}$/d' "$0" >"$boots/gpu-drone" && chmod 700 "$boots/gpu-drone" && return 0
    rm -f "$boots/gpu-drone"
    say "if the server is started again, nothing will switch it off"
}

# A service of its own is told first when the machine shuts down, while there is a network, and is waited for. Whatever
# ends it, the machine goes off. What an older systemd does not know it ignores.
unit() {
    cat <<END_OF_UNIT
[Unit]
Description=GPU drone $drone_id
After=network-online.target remote-fs.target autofs.service
SuccessAction=poweroff
FailureAction=poweroff

[Service]
ExecStart=/bin/sh $run/user_data $mark
StandardOutput=journal+console
StandardError=inherit
KillMode=mixed
TimeoutStopSec=$((grace_s + 2 * slack_s))
OOMPolicy=continue
TasksMax=infinity
END_OF_UNIT
}
become_a_service() {
    cp "$0" "$run/user_data" && unit >"$root/run/systemd/system/gpu-drone.service" &&
        systemctl daemon-reload && systemctl start --no-block gpu-drone.service
}

# ---------------------------------------------------------------------------------------- what jobs in it must not read
# User data holds the drone's token. cloud-init's copies are root's, all the same they go as far as that is possible.
guard_copies() {
    cloud=$root/var/lib/cloud
    rm -f "$run/user_data" "$cloud"/instances/*/user-data* "$cloud"/instances/*/scripts/part-*
    for each in "$cloud/instances" "$root"/run/cloud-init/instance-data*.json; do
        [ ! -e "$each" ] || chmod go-rwx "$each" || say "$each stays open to jobs"
    done
    for label in config-2 CONFIG-2; do
        drive=$(readlink -f "$root/dev/disk/by-label/$label") && [ -e "$drive" ] || continue
        for _ in 1 2 3 4; do umount "$drive" || break; done 2>/dev/null
        if ! chmod 600 "$drive" || grep -q "^$drive " "$root/proc/mounts"; then
            say "the config drive $drive stays open to jobs"
        fi
    done
}

# Root alone may ask the metadata service. Of IPv4 it must be certain; not every cloud has the other.
guard_metadata() {
    v4=169.254.169.254 v6=fe80::a9fe:a9fe
    command -v nft >/dev/null && nft -f - <<END_OF_RULES && return 0
table inet gpu_drone {
    chain output {
        type filter hook output priority 0; policy accept;
        ip daddr $v4 meta l4proto tcp meta skuid != 0 reject with tcp reset
        ip6 daddr $v6 meta l4proto tcp meta skuid != 0 reject with tcp reset
    }
    chain forward {
        type filter hook forward priority 0; policy accept;
        ip daddr $v4 meta l4proto tcp reject with tcp reset
        ip6 daddr $v6 meta l4proto tcp reject with tcp reset
    }
}
END_OF_RULES
    command -v iptables >/dev/null || return 1
    ip6tables -w -I OUTPUT -d $v6 -p tcp -m owner ! --uid-owner 0 -j REJECT
    ip6tables -w -I FORWARD -d $v6 -p tcp -j REJECT
    iptables -w -I FORWARD -d $v4 -p tcp -j REJECT
    iptables -w -I OUTPUT -d $v4 -p tcp -m owner ! --uid-owner 0 -j REJECT
} 2>/dev/null

# ------------------------------------------------------------------------------------------------------------ the drone
if [ -z "$mark" ]; then
    [ -d "$scratch" ] || (umask 022 && mkdir -p "$scratch")
    begin
    mkdir -p "$run"
    if [ -n "$systemd" ]; then
        become_a_service && exit 0
        say "systemd does not take it as a service: it goes on as a part of cloud-init"
    fi
fi
trap leave TERM INT
trap : HUP # not ignored: the drone would inherit that
mkdir -p "$run" && no_later_than "$((setup_s + slack_s))" || finish 69 "cannot write in $run"
watching &
watch=$!
guard_copies
guard_metadata || say "nothing here keeps the metadata service from jobs: they may ask it for the drone's token"

if [ -n "$setup" ]; then
    say "setting up"
    files | gzip -d | tar -xmf - -C "$run" .site/setup || finish 70 "its files cannot be unpacked"
    (umask 022 && exec timeout "$setup_s" sh "$run/.site/setup") </dev/null & # what it makes is for the drone as well
    wait_or_tell $!
    [ -z "$asked" ] || finish 143 "told to leave while it was set up"
    [ "$code" != 124 ] || finish 69 "the setup script took more than $setup_s s"
    [ "$code" = 0 ] || finish 69 "the setup script failed (exit status $code)"
fi

[ -d "$scratch" ] || (umask 022 && mkdir -p "$scratch") # the setup may have mounted something above it
home=$scratch/drone.$drone_id
mkdir "$home" && cd "$home" || { home=; finish 69 "cannot work in $scratch"; }
files | gzip -d | tar -xmf -
[ -e .site/whole ] || finish 70 "its files cannot be unpacked"
[ -z "$asked" ] || finish 143 "told to leave before it began"

say "drone $drone_id begins"
no_later_than "$((walltime_s > 0 ? walltime_s + grace_s + slack_s : 1000000000))"
env -i "PATH=$PATH" "DRONE_DIR=$home" "HOME=$home" "PROVISIONER_DRONE_ID=$drone_id" setsid sh .site/step </dev/null &
wait_or_tell $!
finish "$code"
