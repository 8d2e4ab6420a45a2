# What follows runs on the node, as the job's batch script. Above it stand `controller`, `prefix` and `first` (the drone
# is $prefix-<first + number of the array's task>), `scratch`, `cpus`, `gres`, `grace_s`, and `files`, which writes a tar
# archive of the drone's files to its standard output; and what the scripts of all sites share (tagged.sh).
umask 077
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin

say() { echo "drone job: $*" >&2; }

# A second life would begin with old secrets, and nobody has asked for it.
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
    say "it was requeued, and drones are single-use"
    exit 0
fi

DRONE_ID=$prefix-$((first + ${SLURM_ARRAY_TASK_ID:-0}))
DRONE_DIR=
here=$(uname -n)
cd /

# ---------------------------------------------------------------------------------------------------------------- the end
asked='' caught='' timer='' child=''
# The step hears of a preemption and of scancel by itself, of its time limit (--signal=B:TERM) only from here: a moment
# later, so that who leaves at once is told once. srun passes SIGTERM on as SIGKILL, so the drone is told by its pid.
leave() {
    caught=1
    [ -z "$asked" ] || return 0
    asked=1
    [ ! -d .site ] || : >.site/asked
    (
        trap - TERM
        sleep 1
        [ ! -e .site/pid ] || kill -s TERM "$(cat .site/pid)" 2>/dev/null
        sleep "$((grace_s > 1 ? grace_s - 1 : 0))"
        kill_tagged "$DRONE_ID"
    ) 9<&- &
    timer=$!
}
trap leave TERM
trap '' HUP INT

# finish STATUS: nothing of the drone is left.
finish() {
    trap '' TERM
    [ -z "$timer" ] || kill -s KILL "$timer" 2>/dev/null
    kill_tagged "$DRONE_ID"
    cd /
    exec 9<&-
    if [ -d "$DRONE_DIR" ]; then
        rm -rf "$DRONE_DIR" 2>/dev/null || { chmod -R u+rwX "$DRONE_DIR"; rm -rf "$DRONE_DIR"; }
    fi
    exit "$1"
}

# ------------------------------------------------------------------------------------------ leftovers of killed drones
# Directories of drones that were killed with their batch script: the lock of a live one is held by its batch
# script and by everything that it started. A file system may be shared without its locks: only those of this node.
remove_leftovers() {
    command -v flock >/dev/null || return 0
    for each in "$scratch/drone.$controller-"*; do
        [ -f "$each/.site/lock" ] && [ ! -L "$each" ] || continue
        read -r host <"$each/.site/lock" && [ "$host" = "$here" ] || continue
        [ -n "$(find "$each" -prune -user "$(id -u)" -mmin +10)" ] || continue
        (flock -n -x 9 && rm -rf "$each") 9<"$each/.site/lock"
    done
}

[ -d "$scratch" ] || { say "there is no directory $scratch here: using /tmp instead"; scratch=/tmp; }
remove_leftovers 2>/dev/null
# A name that is known beforehand: it is removed whatever a signal to all processes interrupts.
DRONE_DIR=$scratch/drone.$DRONE_ID.${SLURM_JOB_ID:-$$}
if ! mkdir "$DRONE_DIR"; then
    [ -z "$asked" ] || finish 143
    DRONE_DIR=$(mktemp -d "$scratch/drone.$DRONE_ID.XXXXXX") || { say "cannot work in $scratch"; DRONE_DIR=; finish 69; }
fi
cd "$DRONE_DIR" || finish 69
mkdir .site && echo "$here" >.site/lock || { say "cannot write in $DRONE_DIR"; finish 69; }
exec 9<.site/lock
flock -s 9 2>/dev/null

# -------------------------------------------------------------------------------------------------------------- the drone
files | tar -xmf -
[ -e .site/whole ] || { say "its files cannot be unpacked"; asked=1 code=70; }
export DRONE_ID DRONE_DIR

# All resources of the job, in one step: a step gets what it requests, and signals that a batch script does not get.
if [ -z "$asked" ] && command -v srun >/dev/null; then
    (
        trap '' TERM
        unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
        exec srun --export=ALL --ntasks=1 --nodes=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-$cpus}" --mem=0 \
            --gres="$gres" --mpi=none --input=none --chdir="$DRONE_DIR" /bin/sh "$DRONE_DIR/.site/step"
    ) 9<&- &
    child=$!
    wait_for "$child"
    if [ ! -e .site/pid ]; then
        say "srun could not start it (exit status $code)"
        # SIGTERM is lost on a job that is cancelled while it is being launched: an ended job gets no drone.
        case $(squeue --noheader --jobs="${SLURM_JOB_ID:-0}" --format=%T 2>/dev/null) in
            RUNNING | '') ;;
            *) asked=1 ;;
        esac
    fi
fi
if [ -z "$asked" ] && [ ! -e .site/pid ]; then
    (
        trap - TERM
        exec /bin/sh .site/step </dev/null
    ) 9<&- &
    child=$!
    wait_for "$child"
fi

if [ -f outcome ]; then head -c 2000 outcome; fi
if [ "${code:=143}" != 0 ]; then
    for log in log/*; do
        [ -f "$log" ] || continue
        echo "--- $log"
        tail -n 40 "$log" | head -c 8000
    done
fi
finish "$code"
