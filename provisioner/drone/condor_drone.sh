#!/bin/sh
# A drone for HTCondor: check the GPUs, start a master and a startd of our own in $DRONE_DIR, serve jobs of the overlay
# pool, and leave nothing behind. Needs a POSIX shell, /proc, coreutils (or busybox), setsid, and HTCondor's programs.
# Contract (environment, exit codes, signals, files): docs/reference/drone.md.
set -u
umask 077
export LC_ALL=C

OK=0 USAGE=64 CHECK_FAILED=71 CHECK_HUNG=72 NOT_JOINED=73 NOT_STARTED=74 POOL_LOST=75

# --------------------------------------------------------------------------------------------------------- settings
exit 71 # @include drone_words.sh

word DRONE_ID 'a-z0-9-' ''
word DRONE_SITE 'A-Za-z0-9._-' ''
word DRONE_TYPE 'A-Za-z0-9._-' ''
word DRONE_COLLECTOR ']A-Za-z0-9._:,?=&+<>[-' ''   # several, by comma, stand in for each other
word DRONE_TRUST_DOMAIN 'A-Za-z0-9._:-' ''
word DRONE_TOKEN_FILE 'A-Za-z0-9._/+@=-' token
word DRONE_DIR 'A-Za-z0-9._/+@=-' "$PWD"
number DRONE_GPUS ''               # 0: a CPU drone
number DRONE_CPUS ''
number DRONE_MEMORY_MIB ''
number DRONE_DISK_MIB ''
number DRONE_GPU_MILLI "${DRONE_GPUS}000"
number DRONE_VRAM_MIB 0
word DRONE_SHARING 'a-z-' exclusive
number DRONE_SHARES 1              # as how many GPUs each of them is offered
# How the site limits the memory of a GPU that it shares: kernel, mps or none.
[ -z "${DRONE_VRAM_ENFORCED:-}" ] || word DRONE_VRAM_ENFORCED 'a-z' ''
number DRONE_VRAM_POOL 0           # 1: jobs share the VRAM of the GPU by what they ask for (request_gpumem)
word DRONE_VENDOR 'a-z' nvidia
[ -z "${DRONE_TARGET:-}" ] || word DRONE_TARGET 'A-Za-z0-9_.-' ''   # instruction set of the GPUs: sm_80, gfx90a
word DRONE_AD ']A-Za-z0-9._+;"= [-' ' '   # further attributes of the slot: NAME=EXPRESSION without blanks, ...
[ -z "${DRONE_DCGM_JOBS:-}" ] || word DRONE_DCGM_JOBS 'A-Za-z0-9._/+@=-' ''   # directory of dcgm-exporter's job mapping
number DRONE_IDLE_S 600
number DRONE_GRACE_S 30
number DRONE_WALLTIME_S 0          # 0: without end
number DRONE_RETIRE_S "$((DRONE_GRACE_S + (DRONE_WALLTIME_S < 36000 ? DRONE_WALLTIME_S / 10 : 3600)))"
# Rules on the jobs that it takes, by name: "min_gpus=2 first_s=90" sets rule_min_gpus and rule_first_s.
word DRONE_JOB_FILTER 'A-Za-z0-9._@,= -' ' '
for rule in $DRONE_JOB_FILTER; do
    case $rule in [a-z]*=*) eval "rule_$rule" ;; *) refuse "DRONE_JOB_FILTER has a rule without a value: $rule" ;; esac
done
word rule_excluded_users 'A-Za-z0-9._@,-' ,   # users whose jobs it does not take
number rule_min_gpus 0             # it never takes jobs that request fewer GPUs
number rule_first_s 0
number rule_first_gpus 0           # for its first rule_first_s it takes only jobs that request so many GPUs
number rule_first_vram_mib 0       # for the same time it takes only jobs that need so much
number DRONE_KEPT_CPUS 0           # of its own, what each of its free GPUs keeps for the job that will take it
number DRONE_KEPT_MEMORY_MIB 0
number DRONE_KEPT_DISK_MIB 0
number DRONE_JOIN_S 300
number DRONE_REFUSED_S 8           # it gives up after this time if the pool refuses it
number DRONE_POOL_LOST_S 1200
word DRONE_ORDERS_FROM 'A-Za-z0-9._+@,-' ,   # identities whose order ads in the collector it obeys
[ -z "${DRONE_IDENTITY:-}" ] || word DRONE_IDENTITY 'A-Za-z0-9._:@-' ''   # of its token, where no other drone has it
number DRONE_ORDER_S 2             # between two looks for an order; with jobs at least 10
number DRONE_FRESH_S 300           # the pool has heard of it within so long, or it needs its token again
number DRONE_CHECK_S 600           # between two rounds of checks
number DRONE_CLOCK_LIMIT_S 300     # by which its clock may differ from the collector's
number DRONE_CHECK_LIMIT_S 30      # of one check that does not say
# Addresses of inference services by model, `*` for any: MODEL=HOST:PORT, ...
[ -z "${DRONE_INFERENCE:-}" ] || word DRONE_INFERENCE 'A-Za-z0-9._:+*,=-' ''
[ -z "${DRONE_GPU_SIMULATE:-}" ] || word DRONE_GPU_SIMULATE '0-9,' ''
[ "$DRONE_CPUS" -ge 1 ] || refuse "DRONE_CPUS is $DRONE_CPUS"
case $DRONE_SHARING:$DRONE_SHARES in
    exclusive:1 | time-sliced:[1-9]* | mps:[1-9]* | mig:[1-9]*) ;;
    *) refuse "DRONE_SHARES is $DRONE_SHARES with DRONE_SHARING $DRONE_SHARING" ;;
esac
case $DRONE_VRAM_POOL:$DRONE_SHARING:$DRONE_GPUS:$DRONE_SHARES:$DRONE_VRAM_MIB in
    0:* | 1:mps:1:[2-9]*:[1-9]* | 1:mps:1:1[0-9]*:[1-9]*) ;;
    *) refuse "DRONE_VRAM_POOL is $DRONE_VRAM_POOL: it needs one GPU of known VRAM in several shares of MPS" ;;
esac
case ${DRONE_VRAM_ENFORCED:-none} in
    kernel | mps | none) ;;
    *) refuse "DRONE_VRAM_ENFORCED is $DRONE_VRAM_ENFORCED: set it to kernel, mps or none" ;;
esac
share_milli=$(((DRONE_GPU_MILLI < 1000 ? DRONE_GPU_MILLI : 1000) / DRONE_SHARES))     # what a job gets of a GPU
[ "$DRONE_SHARES" -le 32 ] || refuse "DRONE_SHARES is $DRONE_SHARES: at most 32"
[ -d "$DRONE_DIR" ] || refuse "there is no directory $DRONE_DIR"
command -v setsid >/dev/null || refuse "setsid is missing (util-linux or busybox)"

# HTCondor as root would change accounts as it sees fit.
own_files="$DRONE_TOKEN_FILE extra.conf"
exit 71 # @include drone_account.sh

cd "$DRONE_DIR" || refuse "cannot enter $DRONE_DIR"
DRONE_DIR=$(pwd -P)
export PROVISIONER_DRONE_ID="$DRONE_ID" DRONE_ID DRONE_SITE DRONE_TYPE DRONE_DIR
export DRONE_COLLECTOR DRONE_DISK_MIB DRONE_CLOCK_LIMIT_S
export DRONE_GPUS DRONE_GPU_MILLI DRONE_VRAM_MIB DRONE_SHARING DRONE_SHARES DRONE_VRAM_POOL DRONE_VENDOR
[ -r "$DRONE_TOKEN_FILE" ] || refuse "there is no token file $DRONE_TOKEN_FILE in $DRONE_DIR"
# Jobs run as this account and could read every file of it, so the token stays in the memory of this shell (never in the
# environment, never on a command line).
token=$(cat "$DRONE_TOKEN_FILE")
case $DRONE_TOKEN_FILE in /*) ;; *) rm -f "$DRONE_TOKEN_FILE" || refuse "cannot remove $DRONE_TOKEN_FILE in $DRONE_DIR" ;; esac

D=$DRONE_DIR/condor                # everything that goes away at the end is below
LOGS=$DRONE_DIR/log
mkdir -p "$LOGS" || refuse "cannot write in $DRONE_DIR"

# ------------------------------------------------------------------------------------------------------ time, processes
exit 71 # @include drone_processes.sh

# ------------------------------------------------------------------------------------------------------------ the end
guard='' mps='' leaving='' leave_by=0 jobs_begun=0
asked=''                           # TERM or QUIT once a signal asks the drone to leave
trap 'asked=TERM' TERM HUP
trap 'asked=QUIT' INT QUIT

# finish CODE REASON WHY: end what is left, tidy up, write the outcome, exit.
finish() {
    trap '' TERM HUP INT QUIT
    code=$1 reason=$2
    shift 2
    [ -z "$guard" ] || kill -KILL -- "-$guard" 2>/dev/null
    end_mps_clients 2
    if [ -z "$leaving" ] && push QUIT condor_startd; then
        # A startd without its master still tells the pool that it goes, and takes its jobs along.
        limit=$((now + 3))
        while push 0 condor_startd && [ "$now" -lt $limit ]; do rest 0.3; done
    fi
    [ -z "$mps" ] || quit_mps
    kill_all
    ended=$(jobs_ended)
    started=$((ended + $(jobs_running)))
    [ -z "${DRONE_DCGM_JOBS:-}" ] || [ ! -r "$D/dcgm" ] || unmap_jobs
    [ $started -ge $jobs_begun ] || started=$jobs_begun      # a startd that was killed has not written down its last job
    chmod -R u+rwx "$D" 2>/dev/null
    rm -rf "$D" extra.conf checks 2>/dev/null
    line="drone=$DRONE_ID exit=$code reason=$reason jobs_started=$started jobs_ended=$ended seconds=$((now - began))"
    echo "$line why=$(escaped "$*")" >outcome.new && mv outcome.new outcome
    say "ends with $code after $((now - began)) s and $started jobs: $reason: $*"
    exit "$code"
}

# ------------------------------------------------------------------------------------------------------------- checks
exit 71 # @include drone_checks.sh

# What the slot shows of its GPUs until gpu_health.py has judged them.
write_gpu_attributes() {
    check=nvidia-smi
    [ -z "${DRONE_GPU_SIMULATE:-}" ] && [ "$DRONE_VENDOR" = nvidia ] || check=none
    cat >"$D/etc/config.d/40-gpus" <<CONFIG
GpuVendor = "$DRONE_VENDOR"
GpuTarget = "${DRONE_TARGET:-}"
DroneGpusOffline = 0
DroneGpusOfflineWhy = ""
DroneGpuCheck = "$check"
STARTD_ATTRS = \$(STARTD_ATTRS) GpuVendor GpuTarget DroneGpusOffline DroneGpusOfflineWhy DroneGpuCheck
CONFIG
}
# Take GPUs offline, and back, as gpu_health.py has written it down. Not before the startd has started: it refuses to be
# larger than the GPUs that are online then, and would never offer the others.
apply_gpu_verdicts() {
    [ -e "$D/gpus.changed" ] || return
    rm -f "$D/gpus.changed"
    cp "$D/gpus.conf" "$D/60-gpus" && mv "$D/60-gpus" "$D/etc/config.d" || { : >"$D/gpus.changed"; return; }
    reread_config
}

# ---------------------------------------------------------------------------------------------------------- HTCondor
# Where the programs are: an unpacked distribution package, HTCondor's own tarball, or this host's.
find_condor() {
    prefix=$(printf '%s' "${CONDOR_PREFIX:-}" | sed "s/{arch}/$(uname -m)/g")
    case $prefix in *[!A-Za-z0-9._/+@=-]*) refuse "CONDOR_PREFIX has a character that is not one of A-Za-z0-9._/+@=-" ;; esac
    PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    if [ -n "$prefix" ]; then
        [ -x "$prefix/usr/sbin/condor_master" ] && prefix=$prefix/usr
        [ -x "$prefix/sbin/condor_master" ] || finish $NOT_STARTED no-condor "there is no condor_master below $CONDOR_PREFIX"
    else
        master=$(command -v condor_master) || finish $NOT_STARTED no-condor "condor_master is neither on PATH nor in /usr/sbin"
        prefix=$(dirname "$(dirname "$master")")
        [ -n "${prefix#/}" ] || prefix=/usr
    fi
    PATH=$prefix/bin:$prefix/sbin:$PATH
    lib=$(first_with condor_gpu_discovery "$prefix/libexec/condor" "$prefix/libexec" "$prefix/lib/condor/libexec") ||
        finish $NOT_STARTED no-condor "there is no condor_gpu_discovery below $prefix"
    # Under MIG the slices are the devices. Else each GPU is found as often as it is shared, with its part of the memory:
    # HTCondor 23 divides that only where it tells each GPU for itself (-mixed).
    options=-extra
    case $DRONE_SHARING in mps | time-sliced) options="$options -divide $DRONE_SHARES -mixed" ;; esac
    [ -z "${DRONE_GPU_SIMULATE:-}" ] || options="$options -simulate:$DRONE_GPU_SIMULATE"
    export PATH DRONE_DISCOVERY="$lib/condor_gpu_discovery" DRONE_DISCOVERY_OPTIONS="$options"
}
first_with() {
    file=$1
    shift
    for directory; do [ -x "$directory/$file" ] && { echo "$directory"; return; }; done
    return 1
}

# HTCondor takes configuration from the environment, and a site may itself be HTCondor: none of that may reach ours.
# (Not unset, because a name with a dot is no variable of a shell. _CONDOR_ANCESTOR_* let the site find our processes.)
scrub() {
    names=$(env | sed -n 's/^\(_*[Cc][Oo][Nn][Dd][Oo][Rr]_[^= ]*\)=.*/\1/p' | grep -v '^_CONDOR_ANCESTOR_')
    clean='env'
    # What a shell starts in the background ignores SIGINT and SIGQUIT, and so would every job.
    if env --default-signal=INT,QUIT true 2>/dev/null; then clean='env --default-signal=INT,QUIT'; fi
    for name in $names; do clean="$clean -u $name"; done
    clean="$clean CONDOR_CONFIG=$D/etc/condor_config HOME=$D TMPDIR=$D/tmp"
}

exit 71 # @include drone_mps.sh
# HTCondor's id and UUID of each GPU, and its memory.
list_mps_gpus() {
    # shellcheck disable=SC2086
    ask_driver 60 $clean "$DRONE_DISCOVERY" $DRONE_DISCOVERY_OPTIONS
    grep '\[ *id="' "$D/said" | while read -r line; do
        echo "$(property id) GPU-$(property DeviceUuid | sed 's/^GPU-//') $(property DeviceMemoryMb)"
    done
}
property() { echo "$line" | sed -n "s/.*[[ ;]$1=\"\{0,1\}\([^\";]*\).*/\1/p"; }
# A client that is killed amid its work may take its neighbours along: its work is ended first, within so many seconds.
end_mps_clients() {
    # shellcheck disable=SC2086
    [ -z "$mps" ] || $clean timeout -k 1 "$1" sh "$D/mps.sh" end
}
configure_mps() {
    cat >"$D/mps_job.py" <<'MPS_JOB'
exit(71)  # @include mps_job.py
MPS_JOB
    # Jobs end their clients in order by Python. It is found here, since a job's PATH is the job's.
    python=$(command -v python3)
    [ -n "$python" ] && "$python" -I -S -c 'from __future__ import annotations' 2>/dev/null || python=
    echo "$VACATE_S $(command -v nvidia-cuda-mps-control) $python" >"$D/mps/wrapper"
    cat <<CONFIG

# --- MPS: whether each GPU's server accepts clients, and whose job faulted
STARTD_CRON_JOBLIST = \$(STARTD_CRON_JOBLIST) DRONE_MPS
STARTD_CRON_DRONE_MPS_EXECUTABLE = /bin/sh
STARTD_CRON_DRONE_MPS_ARGS = $D/mps.sh watch
STARTD_CRON_DRONE_MPS_CWD = $D/tmp
STARTD_CRON_DRONE_MPS_MODE = Periodic
STARTD_CRON_DRONE_MPS_PERIOD = 5
STARTD_CRON_DRONE_MPS_RECONFIG = False
DroneMpsOrderedEnd = $([ -n "$python" ] && echo True || echo False)
STARTD_ATTRS = \$(STARTD_ATTRS) DroneMpsOrderedEnd
CONFIG
}

# ------------------------------------------------------------------------------------------------- GPUs of others
# What keeps jobs from GPUs that they were not given (GpuGuard): namespaces of ours in which these cannot be opened, if the
# kernel lets us have them, it is known which files are whose, and HTCondor finds the drone's GPUs there; else a device
# filter of the site, where all jobs get the same GPU; else variables of the environment, which a job may ignore.
choose_guard() {
    prepare_guard
    # shellcheck disable=SC2086
    if namespace_works && knows_gpus $seen sh "$D/drone_wrapper.sh"; then
        gpu_guard=namespace guarded="sh $D/drone_wrapper.sh" clean="$clean $seen"
        [ "$devices" -le 1 ] || { wrapper=yes; echo guard_jobs=yes >>"$D/guard"; }
    elif [ "$devices" -le 1 ] && knows_gpus && ask_driver 20 others_are_refused; then
        gpu_guard=cgroup
    fi
    choose_view
    inference=${DRONE_INFERENCE:-}
    [ -z "$inference" ] || echo "$inference" | tr ',' '\n' | sed 's/^\(.*\)=\(.*\):/\1 \2 /' >"$D/inference"
    [ -z "$wrapper$mps$view$inference" ] || wrapper="USER_JOB_WRAPPER = $D/job_wrapper.sh"
}
# Pilots report the first GPU that nvidia-smi lists, with its memory. Where that is another one than the job's, or has more
# memory than its share, jobs get an nvidia-smi that asks NVIDIA's for theirs. GpuViewTrue: it was tried, and is right.
choose_view() {
    view='' view_true=True
    real=$(command -v nvidia-smi)
    case $real in *[!A-Za-z0-9._/+@=-]*) real= ;; esac
    if [ -z "$real" ]; then
        [ "$DRONE_GPUS" -eq 0 ] || view_true=False      # they see no GPU at all
        return
    fi
    [ "$DRONE_SHARING" != exclusive ] || [ $gpu_guard = environment ] || return
    share_mib=
    if [ "$DRONE_SHARING" != exclusive ]; then
        share_mib=slot
        [ "$DRONE_SHARING" = mig ] || [ "$DRONE_VRAM_MIB" -eq 0 ] || share_mib=$((DRONE_VRAM_MIB / DRONE_SHARES))
    fi
    mkdir -p "$D/bin"
    { printf '%s\n' '#!/bin/sh' "real='$real'" "share_mib=$share_mib"; cat <<'NVIDIA_SMI'
exit 71 # @include nvidia_smi.sh
NVIDIA_SMI
    } >"$D/bin/nvidia-smi"
    chmod 700 "$D/bin/nvidia-smi"
    view=yes
    [ "$DRONE_GPUS" -gt 0 ] || return
    # Tried with the first device, as HTCondor finds it.
    # shellcheck disable=SC2086
    ask_driver 60 $clean "$DRONE_DISCOVERY" $DRONE_DISCOVERY_OPTIONS
    first=$(sed -n 's/^DetectedGPUs="\([^", ]*\).*/\1/p' "$D/said")
    found_mib=$(sed -n 's/.*GlobalMemoryMb=\([0-9]*\).*/\1/p' "$D/said" | head -n 1)
    echo "GPUs_GlobalMemoryMb = ${found_mib:-0}" >"$D/view.ad"
    expected=$share_mib
    [ "$expected" != slot ] || expected=${found_mib:-none}
    # shellcheck disable=SC2086
    ask_driver 60 $clean _CONDOR_AssignedGPUs="$first" _CONDOR_MACHINE_AD="$D/view.ad" "$D/bin/nvidia-smi" \
        --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits || view_true=False
    # shellcheck disable=SC2254
    case $(wc -l <"$D/said"):$(cat "$D/said") in 1:*,\ ${expected:-[0-9]*},*) ;; *) view_true=False ;; esac
    [ $view_true = True ] || say "nvidia-smi does not show the GPU of a job: $(said_by_driver)"
}
exit 71 # @include drone_gpus.sh
others_are_refused() {
    refused=1
    for file in $(sh "$D/drone_wrapper.sh"); do
        case $file in /dev/nvidia[0-9]* | /dev/dri/render*) ;; *) continue ;; esac
        if (: <"$file") 2>/dev/null; then return 1; fi
        refused=0
    done
    return $refused
}
# knows_gpus [COMMAND...]: HTCondor, run by this command, finds the devices of the table and no others.
knows_gpus() {
    [ "$DRONE_GPUS" -gt 0 ] || return 0
    [ "$devices" -gt 0 ] || return
    # shellcheck disable=SC2086
    ask_driver 60 $clean "$@" "$DRONE_DISCOVERY" $DRONE_DISCOVERY_OPTIONS || return
    found=$(tr -d ' ' <"$D/said" | sed -n 's/^DetectedGPUs="\([^"]*\)".*/\1/p' | tr ',' '\n' | sort -u)
    for id in $found; do grep -q "^$id" "$D/gpus" || return; done
    [ "$(echo "$found" | grep -c .)" -eq "$devices" ]
}
# condor_submit -i and condor_ssh_to_job need the node's sshd, and files of HTCondor that are not below LIB in each package.
choose_ssh() {
    ssh_why='' ssh=''
    sshd=$(command -v sshd) keygen=$(command -v ssh-keygen)
    template=''
    for directory in "$prefix/lib/condor" "$prefix/lib64/condor" "$prefix/lib" "$prefix/lib64"; do
        file=$directory/condor_ssh_to_job_sshd_config_template
        [ -n "$template" ] || [ ! -r "$file" ] || template=$file
    done
    case $sshd:$keygen:$template in
        *[!A-Za-z0-9._/:+@=-]*) ssh_why="a path has a character that is not one of A-Za-z0-9._/+@=-" ;;
        :*) ssh_why="there is no sshd on this node" ;;
        *::*) ssh_why="there is no ssh-keygen on this node" ;;
        *:) ssh_why="HTCondor below $prefix has no condor_ssh_to_job_sshd_config_template" ;;
    esac
    if [ -n "$ssh_why" ]; then
        ssh="SshToJob = False"
        return
    fi
    ssh="SSH_TO_JOB_SSHD = $sshd
SSH_TO_JOB_SSH_KEYGEN = $keygen
SSH_TO_JOB_SSHD_CONFIG_TEMPLATE = $template
SshToJob = True"
}

# The kind of job that a drone with GPUs takes: one that wants some, and after which every GPU that is still free keeps
# its share of the rest. (The slot's Cpus, Memory, Disk and GPUs are what is left. A startd rounds memory up to 128 MiB.)
# Of shared GPUs a job gets one share, which must be enough for it: HTCondor would give it two of different GPUs.
takes_gpu_jobs() {
    if [ $share_milli -eq 1000 ]; then
        printf '(TARGET.RequestGPUs ?: 0) >= 1'
    elif [ "$DRONE_VRAM_POOL" = 0 ]; then
        printf '(TARGET.RequestGPUs ?: 0) == 1 && (TARGET.GpuMilli ?: 1000) <= %s' $share_milli
    else
        printf '(TARGET.RequestGPUs ?: 0) == 1 && ((TARGET.GpuMilli ?: 1000) <= %s || (TARGET.RequestGPUMem ?: 0) > 0)' \
            $share_milli
        printf ' && MY.GPUMem >= %s' "$pooled"
    fi
    # HTCondor knows the memory of the whole GPU.
    [ "$DRONE_SHARING:$DRONE_SHARES" != mps:1 ] || printf ' && (TARGET.GPUsMinMemory ?: 0) <= %s' "$DRONE_VRAM_MIB"
    # MPS serves CUDA alone: beside its server other interfaces do not work, or take the GPU from its clients.
    [ "$DRONE_SHARING" != mps ] || printf ' && (TARGET.GpuApi ?: "cuda") == "cuda"'
    keeps 'MY.Cpus - (TARGET.RequestCpus ?: 1)' "$DRONE_KEPT_CPUS"
    keeps 'MY.Memory - quantize(TARGET.RequestMemory ?: 128, 128)' "$DRONE_KEPT_MEMORY_MIB"
    keeps 'MY.Disk - (TARGET.RequestDisk ?: 0)' $((DRONE_KEPT_DISK_MIB * 1024))
}
# keeps REST KEPT: so much is kept of what a job leaves for each GPU, or its part for each share of one.
keeps() {
    if [ "$2" -eq 0 ]; then
        return
    elif [ "$DRONE_SHARES" -eq 1 ]; then
        printf ' && %s >= %s * (MY.GPUs - TARGET.RequestGPUs)' "$1" "$2"
    elif [ "$DRONE_VRAM_POOL" = 1 ]; then
        printf ' && (%s) * %s >= %s * (MY.GPUMem - %s)' "$1" "$DRONE_VRAM_MIB" "$2" "$pooled"
    else
        printf ' && (%s) * 1000 >= %s * (MY.GPUs - TARGET.RequestGPUs)' "$1" $(($2 * share_milli))
    fi
}

# The monitor of the GPUs: ours where this node has Python and a driver that it knows, else HTCondor's. Adds to $gpus.
add_gpu_monitor() {
    enforced=none
    monitor="/bin/sh $D/gpu_monitor.sh $DRONE_DISCOVERY $lib/condor_gpu_utilization"
    cat >"$D/gpu_monitor.sh" <<'GPU_MONITOR'
exit 71 # @include gpu_monitor.sh
GPU_MONITOR
    cat >"$D/gpu_monitor.py" <<'GPU_MONITOR'
raise SystemExit(71)  # @include gpu_monitor.py
GPU_MONITOR
    if [ -n "${DRONE_GPU_SIMULATE:-}" ]; then
        monitor=$lib/condor_gpu_utilization
    elif python=$(command -v python3); then
        # shellcheck disable=SC2086
        ask_driver 60 $clean "$python" -I "$D/gpu_monitor.py" probe
        case $? in
            0) enforced=watched monitor="$python -I $D/gpu_monitor.py" ;;
            2) monitor="$python -I $D/gpu_monitor.py" ;;
            *) say "measures GPUs by device only: $(said_by_driver)" ;;
        esac
    fi
    # A job that shares its GPU and holds more VRAM than its share is held, before the jobs beside it run out of VRAM.
    if [ "$DRONE_SHARING" != exclusive ] && [ "$DRONE_SHARING" != mig ]; then
        # VRAM of processes that its jobs left behind is nobody's, and no job's to be held for: it takes no new ones. (Of a
        # part of a GPU it cannot be told from what other drones have.)
        [ $enforced = none ] || [ "$DRONE_SHARES" -eq 1 ] || strays=' && (MY.DroneStrayVram ?: 0) == 0' monitor="$monitor strays"
        share_mib=GPUs_GlobalMemoryMb
        [ "$DRONE_VRAM_MIB" -eq 0 ] || share_mib=$((DRONE_VRAM_MIB / DRONE_SHARES))
        vram_policy="POLLING_INTERVAL = 2
JobVramShare = (MY.GPUMem ?: (MY.GPUs * $share_mib))
STARTD_ATTRS = \$(STARTD_ATTRS) JobVramShare
DRONE_VRAM_EXCEEDED = ((MY.JobVramUsage > MY.JobVramShare && MY.JobVramSince > MY.JobStart) =?= True)
use POLICY : WANT_HOLD_IF(DRONE_VRAM_EXCEEDED, 105, VRAM usage exceeded the job's share of the GPU)
WANT_HOLD_REASON = ifThenElse(\$(DRONE_VRAM_EXCEEDED), \
    strcat(\"VRAM usage of \", MY.JobVramUsage, \" MiB exceeded the job's share of \", MY.JobVramShare, \" MiB\"), \
    \$(WANT_HOLD_REASON))"
    fi
    [ -z "$mps" ] || [ "$DRONE_VRAM_MIB" -eq 0 ] || enforced=mps
    gpus="$gpus
STARTD_CRON_GPUs_MONITOR_EXECUTABLE = ${monitor%% *}
STARTD_CRON_GPUs_MONITOR_ARGS = ${monitor#"${monitor%% *}"}
STARTD_CRON_GPUs_MONITOR_PERIOD = 60
STARTD_CRON_GPUs_MONITOR_METRICS = SUM:GPUs, PEAK:GPUsMemory, PEAK:GPUsEnergy
VramEnforced = \"${DRONE_VRAM_ENFORCED:-$enforced}\"
STARTD_ATTRS = \$(STARTD_ATTRS) VramEnforced"
}

# optional_jobs: what holds on a drone with GPUs for jobs that can do without one (RequiresGPU = "optional"). One is taken
# once nothing has changed in the drone for DRONE_OPTIONAL_AFTER_S, and gets its GPU's part of the drone: so any job that
# needs the GPU fits in its place, and RANK lets the negotiator give it that place at once. (TARGET of a
# MODIFY_REQUEST_EXPR is the slot, MY the job. Memory comes in steps of 128 MiB.)
optional_jobs() {
    cpus=$((DRONE_CPUS / units)) memory=$((DRONE_MEMORY_MIB / units / 128 * 128)) disk=$((disk_kib / units / 1024 * 1024))
    cat <<OPTIONAL_JOBS
DRONE_OPTIONAL_AFTER_S = 60
DRONE_OPTIONAL = ((TARGET.RequiresGPU == "optional") =?= True)
DRONE_READY_AT = 0
DRONE_UNCHANGED_S = (time() - max({MY.NumDynamicSlotsTime ?: 0, MY.EnteredCurrentState ?: 0, \$(DRONE_READY_AT)}))
START = \$(START) && (!\$(DRONE_OPTIONAL) || MY.DynamicSlot =?= True || \$(DRONE_UNCHANGED_S) >= \$(DRONE_OPTIONAL_AFTER_S))
RANK = ifThenElse(\$(DRONE_OPTIONAL), 0, 1)
MAXJOBRETIREMENTTIME = ifThenElse(\$(DRONE_OPTIONAL) && MY.Draining =!= True, 0, 365*24*3600)
OPTIONAL_JOBS
    for each in "Cpus $cpus" "Memory $memory" "Disk $disk"; do
        # shellcheck disable=SC2086
        set -- $each
        name=MODIFY_REQUEST_EXPR_REQUEST$1
        echo "$name = ifThenElse((MY.RequiresGPU == \"optional\") =?= True," \
            "min({TARGET.$1, max({\$($name), $2})}), \$($name))"
    done
}

write_config() {
    mkdir -p "$D/etc/config.d" "$D/etc/tokens" "$D/etc/keys" "$D/run" "$D/lock" "$D/spool" "$D/execute" "$D/tmp"
    : >"$D/etc/config.d/00-none"
    [ ! -r extra.conf ] || cp extra.conf "$D/etc/config.d/50-extra"

    # Not more disk than there is: the node may have less than was ordered.
    disk_kib=$((DRONE_DISK_MIB * 1024))
    free_kib=$(df -Pk "$D/execute" 2>/dev/null | sed -n '$s/.* \([0-9][0-9]*\)  *[0-9][0-9]*% .*/\1/p')
    if [ "${free_kib:-$disk_kib}" -lt $disk_kib ]; then
        say "$((free_kib / 1024)) MiB of disk are free of the $DRONE_DISK_MIB MiB ordered"
        disk_kib=$free_kib
    fi

    # Of the site's notice the jobs get all but what it takes to tell the pool and to tidy up.
    if [ "$DRONE_GRACE_S" -gt 8 ]; then VACATE_S=$((DRONE_GRACE_S - 4)); else VACATE_S=$((DRONE_GRACE_S / 2)); fi
    healthy='(MY.DroneHealthy =!= False)'
    fits=True ends=
    if [ "$DRONE_WALLTIME_S" -gt 0 ]; then
        ends_at=$(($(date +%s) + DRONE_WALLTIME_S))
        ends="DroneEndsAt = $ends_at
DroneRetiresAt = $((ends_at - DRONE_RETIRE_S))
STARTD_ATTRS = \$(STARTD_ATTRS) DroneEndsAt DroneRetiresAt"
        needs='(TARGET.AllowedJobDuration ?: (TARGET.AllowedExecuteDuration ?: ((TARGET.MaxWallTimeMins * 60) ?: 0)))'
        fits="(time() < MY.DroneRetiresAt && time() + $needs <= MY.DroneEndsAt - $DRONE_GRACE_S)"
    fi
    # Kept for its first jobs: until the time is over, or one of them has ended. Then more jobs have
    # started than there are claims, and that stays so: the next job does not close the drone again.
    free="(time() > $(($(date +%s) + rule_first_s)) || (MY.JobStarts ?: 0) > (MY.NumDynamicSlots ?: 0))"
    first=True
    two=
    if [ "$rule_first_vram_mib" -gt 0 ] && [ "$rule_first_s" -gt 0 ]; then
        # gpus_minimum_memory, or a require_gpus that takes a GPU like ours and not one with less memory.
        like_ours='Capability = GPUs_Capability; DeviceName = GPUs_DeviceName; MaxSupportedVersion = GPUs_MaxSupportedVersion'
        # An attribute: inside the expression its parts would not see those of the slot on HTCondor 23.
        two="DroneFirstJobs = {[GlobalMemoryMb = GPUs_GlobalMemoryMb; $like_ours], [GlobalMemoryMb = $((rule_first_vram_mib - 1)); $like_ours]}
STARTD_ATTRS = \$(STARTD_ATTRS) DroneFirstJobs"
        first="($free || (TARGET.GPUsMinMemory ?: 0) >= $rule_first_vram_mib ||"
        first="$first countMatches(TARGET.RequireGPUs, DroneFirstJobs) == 1)"
    fi
    if [ "$rule_first_gpus" -gt 1 ] && [ "$rule_first_s" -gt 0 ]; then
        first="$first && ($free || (TARGET.RequestGPUs ?: 0) >= $rule_first_gpus)"
    fi
    orders=
    if [ "$DRONE_ORDERS_FROM" != , ]; then
        orders="DroneOrder = 0
DroneDraining = False
STARTD_ATTRS = \$(STARTD_ATTRS) DroneOrder DroneDraining"
    fi
    welcome=True users=$(echo "$rule_excluded_users" | sed 's/^,*//; s/,*$//; s/,,*/", "/g')
    [ -z "$users" ] || welcome="(member(TARGET.Owner, {\"$users\"}) =!= True)"
    [ "$rule_min_gpus" -le 1 ] || welcome="$welcome && (TARGET.RequestGPUs ?: 0) >= $rule_min_gpus"
    published=
    set -f      # `[...]` is a ClassAd, no pattern of files
    for each in $DRONE_AD; do
        published="$published
${each%%=*} = ${each#*=}
STARTD_ATTRS = \$(STARTD_ATTRS) ${each%%=*}"
    done
    set +f
    choose_ssh
    talks='(TARGET.InteractiveJob =!= True || MY.SshToJob)'
    vram_policy= strays=
    if [ "$DRONE_GPUS" -gt 0 ]; then
        gpus="USE FEATURE : GPUs
GPU_DISCOVERY_EXTRA = $DRONE_DISCOVERY_OPTIONS"
        pool= pooled="max({$((DRONE_VRAM_MIB / DRONE_SHARES)), TARGET.RequestGPUMem ?: 0})"
        job_milli="MY.GPUs * $share_milli"
        if [ "$DRONE_VRAM_POOL" = 1 ]; then
            # A job may ask for less than it is counted with: of a resource of ours only a consumption policy changes that.
            job_milli="ifThenElse(MY.GPUMem <= $((DRONE_VRAM_MIB / DRONE_SHARES)), $share_milli, \
    (MY.GPUMem * 1000 + $((DRONE_VRAM_MIB - 1))) / $DRONE_VRAM_MIB)"
            pool=yes gpus="$gpus
MACHINE_RESOURCE_GPUMem = $DRONE_VRAM_MIB
SLOT_TYPE_1_CONSUMPTION_POLICY = True
SLOT_TYPE_1_CONSUMPTION_GPUMEM = $pooled
SLOT_TYPE_1_CONSUMPTION_GPUS = TARGET.RequestGPUs ?: 0
SLOT_TYPE_1_CONSUMPTION_CPUS = TARGET.RequestCpus ?: 1
SLOT_TYPE_1_CONSUMPTION_MEMORY = quantize(TARGET.RequestMemory ?: 128, {128})
SLOT_TYPE_1_CONSUMPTION_DISK = quantize(TARGET.RequestDisk ?: 1024, {1024})"
        fi
        add_gpu_monitor
        write_gpu_attributes
        takes=$(takes_gpu_jobs) units=$((DRONE_GPUS * DRONE_SHARES)) unit=GPUs
        optional=$(optional_jobs)
    else
        # A startd looks for GPUs even where it is told of none: those of this node are for others.
        gpus="MACHINE_RESOURCE_GPUs = 0
STARTD_DETECT_GPUS = False"
        takes='(TARGET.RequestGPUs ?: 0) == 0' units=$DRONE_CPUS unit=Cpus optional= job_milli=0
    fi

    cat >"$D/etc/condor_config" <<CONFIG
RELEASE_DIR = $prefix
LOCAL_DIR = $D
BIN = $prefix/bin
SBIN = $prefix/sbin
LIBEXEC = $lib
ETC = $D/etc
RUN = $D/run
LOG = $LOGS
LOCK = $D/lock
SPOOL = $D/spool
EXECUTE = $D/execute
LOCAL_CONFIG_FILE =
LOCAL_CONFIG_DIR = $D/etc/config.d
REQUIRE_LOCAL_CONFIG_FILE = False
USER_CONFIG_FILE =
DAEMON_LIST = MASTER STARTD
MAIL = /bin/true
PREEN =
USE_PROCD = True
DISCARD_SESSION_KEYRING_ON_STARTUP = False
RUNBENCHMARKS = False
MAX_DEFAULT_LOG = 10 Mb

# --- the pool: we call it, it calls us through the connection that we keep open (a worker node takes no calls)
COLLECTOR_HOST = $DRONE_COLLECTOR
CCB_ADDRESS = \$(COLLECTOR_HOST)
USE_SHARED_PORT = True
SHARED_PORT_PORT = 0
UPDATE_COLLECTOR_WITH_TCP = True
UPDATE_INTERVAL = 120
TRUST_DOMAIN = $DRONE_TRUST_DOMAIN
UID_DOMAIN = $DRONE_ID.drone.invalid
FILESYSTEM_DOMAIN = $DRONE_ID.drone.invalid

# --- tokens and nothing else; ours lets us advertise, a match lets a job in, the pool's administrator may drain us
SEC_TOKEN_SYSTEM_DIRECTORY = $D/etc/tokens
SEC_TOKEN_DIRECTORY = $D/etc/tokens
SEC_PASSWORD_DIRECTORY = $D/etc/keys
SEC_TOKEN_POOL_SIGNING_KEY_FILE = $D/etc/keys/none
SEC_DEFAULT_AUTHENTICATION = REQUIRED
# Without any method left (the token is a file for moments only) a daemon would take up its claims' sessions wrongly. FS
# makes of a local process an identity of UID_DOMAIN, which is allowed nothing.
SEC_DEFAULT_AUTHENTICATION_METHODS = IDTOKENS, FS
SEC_CLIENT_AUTHENTICATION_METHODS = IDTOKENS
SEC_DEFAULT_ENCRYPTION = REQUIRED
SEC_DEFAULT_INTEGRITY = REQUIRED
SEC_ENABLE_MATCH_PASSWORD_AUTHENTICATION = True
SEC_ENABLE_REMOTE_ADMINISTRATION = True
ALLOW_READ = *@$DRONE_TRUST_DOMAIN
ALLOW_WRITE = condor@$DRONE_TRUST_DOMAIN
ALLOW_DAEMON = condor@$DRONE_TRUST_DOMAIN
ALLOW_ADMINISTRATOR = condor_pool@* admin@$DRONE_TRUST_DOMAIN condor@$DRONE_TRUST_DOMAIN
ALLOW_CONFIG =

# --- one partitionable slot of exactly this size
STARTD_NAME = $DRONE_ID
MASTER_NAME = $DRONE_ID
NUM_CPUS = $DRONE_CPUS
MEMORY = $DRONE_MEMORY_MIB
DISK = $disk_kib
RESERVED_MEMORY = 0
RESERVED_DISK = 0
$gpus
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = CPUs=100%, Memory=100%, Disk=100%, Swap=100%, GPUs=$((DRONE_GPUS * DRONE_SHARES))${pool:+, GPUMem=100%}
SLOT_TYPE_1_PARTITIONABLE = True
$published
DroneId = "$DRONE_ID"
SiteName = "$DRONE_SITE"
DroneType = "$DRONE_TYPE"
DroneGpuMilli = $DRONE_GPU_MILLI
DroneShares = $DRONE_SHARES
DroneSharing = "$DRONE_SHARING"
DroneJobMilli = $job_milli
DroneReady = False
GpuGuard = "$gpu_guard"
STARTD_ATTRS = \$(STARTD_ATTRS) DroneId SiteName DroneType DroneGpuMilli DroneShares DroneSharing DroneJobMilli \
    DroneReady GpuGuard
GpuViewTrue = $view_true
$ssh
SshToJobWhy = "$ssh_why"
STARTD_ATTRS = \$(STARTD_ATTRS) GpuViewTrue SshToJob SshToJobWhy
MASTER_ATTRS = \$(MASTER_ATTRS) DroneId
$ends
$orders
$two
STARTER_JOB_ENVIRONMENT = "PROVISIONER_DRONE_ID=$DRONE_ID"
$wrapper

# --- what it takes, once its token is put away: jobs that want a GPU (or, without GPUs, that want none), that say no
# longer than we live, while all checks are good
START = MY.DroneReady && $takes && $talks && $healthy${mps:+ && (MY.DroneMpsReady =!= False)}$strays && $fits && $first && $welcome
IS_OWNER = False
SUSPEND = False
PREEMPT = False
KILL = False
RANK = 0
STARTD_CRON_JOBLIST = \$(STARTD_CRON_JOBLIST) DRONE_CHECKS
STARTD_CRON_DRONE_CHECKS_EXECUTABLE = /bin/sh
STARTD_CRON_DRONE_CHECKS_ARGS = $D/run_checks.sh $D/checks $D/checks.state $DRONE_CHECK_LIMIT_S ad
STARTD_CRON_DRONE_CHECKS_CWD = $D/tmp
STARTD_CRON_DRONE_CHECKS_MODE = Periodic
STARTD_CRON_DRONE_CHECKS_PERIOD = $DRONE_CHECK_S
STARTD_CRON_DRONE_CHECKS_RECONFIG = False

# --- when it ends: without a claim for long; told from afar; or when this script says so
STARTD_NOCLAIM_SHUTDOWN = $((DRONE_IDLE_S + DRONE_JOIN_S))
MAXJOBRETIREMENTTIME = 365*24*3600
$optional
# A job that uses more memory than it asked for, and more than its part of the drone, is held: else the site would end
# the drone with all jobs in it. The same for scratch: a full one would end the jobs of others.
DRONE_MEMORY_EXCEEDED = (MemoryUsage =!= UNDEFINED && MemoryUsage > Memory && MemoryUsage * $units > $DRONE_MEMORY_MIB * $unit)
use POLICY : PREEMPT_IF(DRONE_MEMORY_EXCEEDED)
use POLICY : WANT_HOLD_IF(DRONE_MEMORY_EXCEEDED, 102, memory usage exceeded request_memory and the job's part of the drone)
DRONE_DISK_EXCEEDED = (DiskUsage =!= UNDEFINED && DiskUsage > Disk && DiskUsage * $units > $disk_kib * $unit)
use POLICY : WANT_HOLD_IF(DRONE_DISK_EXCEEDED, 104, disk usage exceeded request_disk and the job's part of the drone)
$vram_policy
STARTER_UPDATE_INTERVAL = 60
MACHINEMAXVACATETIME = $VACATE_S
SHUTDOWN_GRACEFUL_TIMEOUT = $VACATE_S
KILLING_TIMEOUT = 1
STARTD_HISTORY = $D/spool/startd_history
CONFIG
    [ -z "$mps" ] || configure_mps >>"$D/etc/condor_config"
}

start_condor() {
    # A session of its own: a signal to the site's process group is for this script, which knows what to do with it.
    # shellcheck disable=SC2086
    $clean setsid $guarded "$prefix/sbin/condor_master" -f >"$LOGS/master.out" 2>&1 </dev/null &
    master=$!
    # If this script is killed outright nobody else would end the master, and what its jobs shared the GPUs by.
    me=$$
    read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ my_start _ <"/proc/$me/stat"
    # shellcheck disable=SC2016
    setsid sh -c '
        while read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ start _ <"/proc/$1/stat" && [ "$start" = "$2" ]; do
            sleep 3
        done 2>/dev/null
        kill -QUIT "$3"
        for pipes in "$4"/mps/[0-9]*/; do
            [ ! -d "$pipes" ] || echo "quit -t 1" | CUDA_MPS_PIPE_DIRECTORY=${pipes%/} timeout 10 nvidia-cuda-mps-control
        done' guard "$me" "$my_start" "$master" "$D" >/dev/null 2>&1 </dev/null &
    guard=$!
}

# Where the site runs dcgm-exporter with a job mapping: a file for each GPU or MIG instance, named NUMBER or NUMBER.INSTANCE,
# with the id of each of its jobs on a line. Written when the set of jobs has changed. A job may write its ads; so a pipe in
# their place must not stop us, and its names reach no other GPU than ours.
map_jobs() {
    present=$(echo "$D"/execute/dir_*)
    [ "$present" != "$mapped" ] || return
    mapped=$present
    found=
    for directory in "$D"/execute/dir_*; do
        [ -d "$directory" ] || continue
        place=$directory/scratch
        [ -d "$place" ] || place=$directory
        ids=$(from_ad AssignedGPUs "$place/.machine.ad" | tr ',' ' ')
        job=$(from_ad GlobalJobId "$place/.job.ad" | tr -cd 'A-Za-z0-9@#._-' | cut -c 1-200)
        [ -n "$job" ] || mapped=        # it has no ads yet
        for id in $ids; do
            found="$found
$id $job"
        done
    done
    while read -r uuid name; do
        echo "$found" | while read -r id job; do
            case $uuid in "${id:-none}"*) echo "$job" ;; esac
        done >"$D/dcgm.new"
        cp "$D/dcgm.new" "$DRONE_DCGM_JOBS/.$name.$DRONE_ID" 2>/dev/null &&
            chmod 644 "$DRONE_DCGM_JOBS/.$name.$DRONE_ID" &&
            mv "$DRONE_DCGM_JOBS/.$name.$DRONE_ID" "$DRONE_DCGM_JOBS/$name" && continue
        say "cannot write $DRONE_DCGM_JOBS/$name: dcgm-exporter gets no jobs from this drone"
        DRONE_DCGM_JOBS=
        return
    done <"$D/dcgm"
}
from_ad() { timeout -k 1 2 sed -n "s/^$1 = \"\(.*\)\"\$/\1/p" "$2" 2>/dev/null | head -n 1; }
unmap_jobs() {
    while read -r _ name; do rm -f "$DRONE_DCGM_JOBS/$name"; done <"$D/dcgm"
}

jobs_running() {
    count=0
    for directory in "$D"/execute/dir_*; do [ ! -d "$directory" ] || count=$((count + 1)); done
    echo $count
}
jobs_ended() { cat "$D"/spool/startd_history* 2>/dev/null | grep -c '^\*\*\* '; }

# ------------------------------------------------------------------------------------------------------------- the token
# Its daemons read the token from a file when they have no session with the collector: when they start, when a session
# has ended (a day, by default) and when the collector has started anew. The file is there only then.
place_token() {
    [ -z "$placed_at" ] || return
    placed_at=$now
    printf '%s\n' "$token" >"$D/etc/tokens/drone.new" && mv "$D/etc/tokens/drone.new" "$D/etc/tokens/drone"
}
remove_token() {
    rm -f "$D/etc/tokens/drone"
    placed_at=''
    [ ! -e "$D/etc/config.d/10-ready" ] || return
    apply_gpu_verdicts
    # A startd counts the time without a claim from its start, when it could not have one yet.
    printf 'DroneReady = True\nDRONE_READY_AT = %s\nSTARTD_NOCLAIM_SHUTDOWN = %s\n' \
        "$(date +%s)" $((DRONE_IDLE_S + now - launched + 1)) >"$D/10-ready"
    mv "$D/10-ready" "$D/etc/config.d"
    reread_config || true     # and the startd tells the pool at once
}

# With the token there, have them call the pool now: the first call ends the session that the pool does not know any more,
# the next one begins another.
renew_sessions() {
    place_token
    kill -HUP "$master" 2>/dev/null
}

# as_drone COMMAND...: run a tool of HTCondor's with our token, which comes by a file without a name: a job could open one
# that has a name, if only for a moment, and wait for the token. A shell alone cannot make a file that never had one.
as_drone() (
    if python=$(command -v python3) && "$python" -I -S -c 'import os; os.memfd_create' 2>/dev/null; then
        in_memory='import os, sys
file = os.memfd_create("token", 0)
os.fchmod(file, 0o600)
os.write(file, sys.stdin.buffer.read())
os.lseek(file, 0, 0)
os.dup2(file, 0)
os.close(file)
os.execvp(sys.argv[1], sys.argv[1:])'
        # shellcheck disable=SC2086
        printf '%s\n' "$token" | $clean \
            _CONDOR_SEC_TOKEN_DIRECTORY=/proc/self/fd _CONDOR_SEC_TOKEN_SYSTEM_DIRECTORY=/proc/self/fd \
            "$python" -I -S -c "$in_memory" timeout -k 2 20 "$@"
        return
    fi
    name=$(mktemp "$D/tmp/unnamed.XXXXXX") || return
    exec 9<>"$name"
    rm -f "$name"
    printf '%s\n' "$token" >&9
    # shellcheck disable=SC2086
    exec $clean _CONDOR_SEC_TOKEN_DIRECTORY=/proc/self/fd _CONDOR_SEC_TOKEN_SYSTEM_DIRECTORY=/proc/self/fd \
        timeout -k 2 20 "$@" <&9 9<&-
)

# ----------------------------------------------------------------------------------------------------- watching the pool
# Does the pool list us, and has it heard of us lately, by its own clock? Asked in the background, answered by a file,
# given up after 20 s. The collector writes AuthenticatedIdentity into each ad: what other drones' tokens advertise about
# us counts for nothing where our token is ours alone. A pool may map our identity to a name that is no drone's.
ask_pool() {
    rm -f "$D/listed"
    ours="DroneId == \"$DRONE_ID\""
    if [ -n "${DRONE_IDENTITY:-}" ]; then
        others=$(echo "${DRONE_IDENTITY%%"$DRONE_ID"*}[a-z0-9-]+${DRONE_IDENTITY#*"$DRONE_ID"}" | sed 's/[.]/[.]/g')
        ours="$ours && (AuthenticatedIdentity =?= \"$DRONE_IDENTITY\""
        ours="$ours || regexp(\"^$others\$\", AuthenticatedIdentity) =!= true)"
    fi
    fresh_s=$DRONE_FRESH_S
    [ -z "$placed_at" ] || [ $((now - placed_at)) -ge "$fresh_s" ] || fresh_s=$((now - placed_at))
    ( as_drone "$prefix/bin/condor_status" -any -af MyType LastHeardFrom MyCurrentTime \
        -constraint "$ours && time() - LastHeardFrom <= $fresh_s" >"$D/listed.out" 2>&1
        echo $? >"$D/listed.new"; mv "$D/listed.new" "$D/listed" ) &
    asking=yes
}
# Takes the answer, if there is one: sets heard (when the pool last answered) and joined (when it first listed us), and
# puts the token away or lays it out again.
hear_pool() {
    [ -e "$D/listed" ] || return
    read -r status <"$D/listed"
    rm -f "$D/listed"
    asking='' asked_at=$now
    if [ "$status" != 0 ]; then
        pool_says=$(tail -n 1 "$D/listed.out")
        return
    fi
    heard=$now slot_heard='' master_heard=''
    while read -r type received sent _; do
        # A remark of the tool is no ad. And a shell's arithmetic runs what is in a text: only numbers may reach it.
        received=${received%.*} sent=${sent%.*}
        case $received in '' | 0?* | *[!0-9]* | ????????????*) continue ;; esac
        case $type in DaemonMaster) master_heard=yes; continue ;; esac
        slot_heard=yes
        case $sent in '' | 0?* | *[!0-9]* | ????????????*) continue ;; esac
        echo $((received - sent)) >"$D/clock.new" && mv "$D/clock.new" "$D/clock"
    done <"$D/listed.out"
    if [ -n "$slot_heard" ]; then
        [ -n "$joined" ] || { joined=$now; say "joined the pool after $((now - began)) s"; }
    fi
    if [ -n "$slot_heard" ] && [ ! -e "$D/etc/config.d/10-ready" ]; then
        said=$(sh "$D/checks/clock_check.sh" 2>&1)
        case $? in
            0) case $said in *' '[0-9]' s '* | *' '[1-5][0-9]' s '*) ;; *) say "$said" ;; esac ;;
            77) ;;
            *) leave TERM $CHECK_FAILED check-failed "check clock_check failed: $said"; return ;;
        esac
    fi
    if [ -z "$slot_heard" ]; then
        [ -z "$joined" ] || renew_sessions
    elif [ -n "$master_heard" ] || [ $((now - ${placed_at:-0})) -ge "$DRONE_FRESH_S" ]; then
        remove_token
    else
        kill -HUP "$master" 2>/dev/null     # which calls 5 s after its start otherwise
    fi
}

# ------------------------------------------------------------------------------------------------------------ orders
# Ask the pool for our order, in the background; the answer comes by a file. The collector itself writes
# AuthenticatedIdentity into each ad: nobody can advertise in another's name.
ask_order() {
    from="stringListMember(AuthenticatedIdentity, \"$DRONE_ORDERS_FROM\")"
    ( as_drone "$prefix/bin/condor_status" -generic -limit 1 \
        -constraint "DroneOrderFor == \"$DRONE_ID\" && $from" \
        -af DroneOrder DroneOrderMode AuthenticatedIdentity >"$D/order.new" 2>&1
        mv "$D/order.new" "$D/order" ) &
    order_asked_at=$now
}
# Obey the order that the pool has for us, once: a new order has another serial number than the last.
take_order() {
    while read -r serial mode from; do
        case $serial in '' | *[!0-9]*) continue ;; esac
        [ "$serial" != "$order" ] || return
        say "order $serial of $from: $mode"
        case $mode in
            peaceful)      # an order that could not be written (a full disk) is read again
                tell_startd "START = False" "DroneDraining = True" || return
                drains_since=$now ;;
            resume)
                tell_startd "DroneDraining = False" || return
                drains_since= ;;
            graceful) leave TERM $OK drained "ordered by $from" ;;
            fast) leave QUIT $OK drained "ordered by $from, at once" ;;
            *) return ;;
        esac
        order=$serial ordered_by=$from
        return
    done <"$D/order"
}
look_for_order() {
    every_s=$DRONE_ORDER_S
    [ "$running" -eq 0 ] || [ "$every_s" -ge 10 ] || every_s=10      # only one that is idle can leave at once
    if [ ! -e "$D/order" ] && [ ! -e "$D/order.new" ] && [ $((now - order_asked_at)) -ge "$every_s" ]; then
        ask_order
        for _ in 1 2 3 4 5; do [ -e "$D/order" ] || rest 0.1; done      # mostly it is there at once
    fi
    if [ -e "$D/order" ]; then
        take_order
        rm -f "$D/order"
    fi
}
# tell_startd LINE...: set its configuration; the slot's ad shows that to the pool within a second or two.
tell_startd() {
    { printf '%s\n' "$@"; echo "DroneOrder = $serial"; } >"$D/90-order" && mv "$D/90-order" "$D/etc/config.d" || return
    reread_config || true     # without a startd the next one reads it
}
no_starter() {
    startd=$(child_of "$master" condor_startd)
    [ -z "$startd" ] || [ -z "$(child_of "$startd" condor_starter)" ]
}
reread_config() {
    startd=$(child_of "$master" condor_startd)
    [ -n "$startd" ] && kill -HUP "$startd" 2>/dev/null
}

# A startd without a claim looks only at each UPDATE_INTERVAL whether it may go: drained (HTCondor 23 looks at once), or
# idle for long. That interval is short for a moment then. One that stays after all, for its administrator to resume it,
# gets its own back.
let_idle_go() {
    [ "$running" -eq 0 ] && [ -e "$D/etc/config.d/10-ready" ] || idle_since=$now
    may_go=$(grep -s 'draining is complete' "$LOGS/StartLog" | tail -n 1)
    [ $((now - idle_since)) -le $((DRONE_IDLE_S + 2)) ] || may_go="$may_go idle since $idle_since"
    if [ -n "$may_go" ] && [ "$may_go" != "$may_go_as" ]; then
        echo 'UPDATE_INTERVAL = 1' >"$D/etc/config.d/91-leaving" || return
        may_go_as=$may_go may_go_at=$now
    elif [ -e "$D/etc/config.d/91-leaving" ] && [ $((now - may_go_at)) -ge 15 ]; then
        rm -f "$D/etc/config.d/91-leaving"
    else
        return
    fi
    reread_config || true
}

# Why the pool does not list us: its refusal as our daemons' logs have it (without the time of the line), and what
# condor_status said, which may read the pool's lists all the same.
why_not_listed() {
    refusal=$(refusal_of_pool)
    refusal="$refusal${refusal:+${pool_says:+; }}$pool_says"
    echo "${refusal:-its logs tell of no refusal, and the pool lists no slot of it}"
}
# The pool's refusal, from its first word of it on: what is before that is long, and messages are cut. Empty without one.
refusal_of_pool() {
    refusal=$(grep -ohE '(DENIED|AUTHENTICATE:|Failed to authenticate|PERMISSION).*' "$LOGS/StartLog" "$LOGS/MasterLog" \
        2>/dev/null | tail -n 1 | cut -c 1-160)
    ends_at=$(echo "$token" | cut -d . -f 2 | tr '_-' '/+' | base64 -d 2>/dev/null |
        sed -n 's/.*"exp": *\([0-9]\{1,11\}\).*/\1/p')
    [ -z "$refusal" ] || [ "${ends_at:-0}" -eq 0 ] || [ "$ends_at" -gt "$(date +%s)" ] ||
        refusal="its token expired at $(date -u -d "@$ends_at" +%Y-%m-%dT%H:%M:%SZ 2>/dev/null || echo "$ends_at"); $refusal"
    echo "$refusal"
}

# Why the startd went, if it went by itself: the last words in the logs.
log_errors() { grep -hE 'ERROR|exited with status|died due to signal|FATAL' "$LOGS/MasterLog" "$LOGS/StartLog" 2>/dev/null | tail -n 3; }

# --------------------------------------------------------------------------------------------------------- leaving
# leave MODE CODE REASON WHY: ask the master to go; the loop waits for it, and pushes.
leave() {
    [ "$leaving" != QUIT ] || return
    leaving=$1 leave_code=$2 leave_reason=$3 leave_why=$4
    jobs_begun=$(($(jobs_ended) + $(jobs_running)))
    say "leaves: $3: $4"
    case $1 in
        TERM)
            # After VACATE_S the master itself turns to killing; what is left at this time is ended below.
            leave_by=$((now + DRONE_GRACE_S - 2))
            # No retirement any more: jobs get their notice now. The startd must have read that before it is told to go.
            printf 'MAXJOBRETIREMENTTIME = 0\nSTART = False\n' >"$D/etc/config.d/99-leaving"
            if reread_config; then rest 0.5; fi
            kill -TERM "$master" 2>/dev/null ;;
        QUIT)
            end_mps_clients 2
            leave_by=$((now + 4))
            kill -QUIT "$master" 2>/dev/null ;;
    esac
}

# The master has gone. Nobody here told it to: what did it?
ended_by_itself() {
    if grep -qE 'STARTD \(pid [0-9]+\) (died due to signal|died on signal)' "$LOGS/MasterLog" 2>/dev/null; then
        finish $NOT_STARTED startd-died "$(log_errors)"
    elif [ "$1" -gt 128 ]; then
        finish $NOT_STARTED master-died "condor_master ended by signal $(($1 - 128))"
    elif grep -q 'No resources have been claimed for' "$LOGS/StartLog" 2>/dev/null; then
        finish $OK idle "no claim for $DRONE_IDLE_S s"
    elif [ "$DRONE_SHARES" -gt 1 ] && grep -qs "Can't allocate 1st slot of type 1" "$LOGS/StartLog"; then
        finish $NOT_STARTED no-shares "its HTCondor counts a GPU once, however often it is shared: 23.9 does, 25 does not"
    elif [ -z "$joined" ]; then
        finish $NOT_STARTED startd-died "$(log_errors)"
    fi
    # Whoever did it: the controller, where order ads do not reach us, or an administrator.
    finish $OK drained "by condor_drain$(sed -n 's/.*Processing drain request \(from .*\)/ \1/p' "$LOGS/StartLog" 2>/dev/null | tail -n 1)"
}

# -------------------------------------------------------------------------------------------------------------- main
# One look at everything, once a second: the pool, the clock, the checks.
look() {
    # The startd leaves by itself when it is idle for long or drained: its master would stay. (Nor can the master be told
    # to look: on a slow host it looks before it has started the startd, and goes at once.)
    if grep -qsE 'The STARTD \(pid [0-9]+\) (exited with|died due to|died on)' "$LOGS/MasterLog"; then
        [ "$gone_at" -gt 0 ] || { gone_at=$now; kill -TERM "$master" 2>/dev/null; }
        [ $((now - gone_at)) -lt 10 ] || kill -KILL "$master" 2>/dev/null
        return
    fi

    hear_pool
    [ -z "$leaving" ] || return
    running=$(jobs_running)
    [ -z "${DRONE_DCGM_JOBS:-}" ] || map_jobs
    let_idle_go
    [ ! -e "$D/etc/config.d/10-ready" ] || apply_gpu_verdicts
    if [ -n "$joined" ] && [ "$DRONE_ORDERS_FROM" != , ]; then
        look_for_order
        [ -z "$leaving" ] || return
    fi
    # Quick while the token is there and the pool has it in hand.
    pause_s=1
    [ -z "$placed_at" ] || [ $((now - placed_at)) -ge 5 ] || pause_s=0
    # Where the pool reads our query and refuses our ads, that may go on for long.
    [ -z "$placed_at" ] || [ $((now - placed_at)) -lt 30 ] || pause_s=5
    if [ -z "$joined" ]; then
        [ -n "$asking" ] || [ $((now - asked_at)) -lt $((2 * pause_s)) ] || ask_pool
        # A refusal does not pass by waiting, and the place is for others.
        if [ $((now - launched)) -ge "$DRONE_REFUSED_S" ] && said=$(refusal_of_pool) && [ -n "$said" ]; then
            leave QUIT $NOT_JOINED not-joined "refused by the pool $DRONE_COLLECTOR: $said"
            return
        fi
        [ $((now - launched)) -lt "$DRONE_JOIN_S" ] ||
            leave QUIT $NOT_JOINED not-joined "not in the pool $DRONE_COLLECTOR within $DRONE_JOIN_S s: $(why_not_listed)"
    else
        if [ -n "$placed_at" ]; then every_s=$pause_s; else every_s=$ask_every_s; fi
        [ -n "$asking" ] || [ $((now - asked_at)) -lt $every_s ] || ask_pool
        [ "$running" -gt 0 ] || [ $((now - heard)) -lt "$DRONE_POOL_LOST_S" ] ||
            leave QUIT $POOL_LOST pool-lost "no word from $DRONE_COLLECTOR for $((now - heard)) s: $pool_says"
    fi
    # By then the startd has read that it takes no more jobs, and one that it had just taken has a starter.
    if [ -n "$drains_since" ] && [ "$running" -eq 0 ] && [ $((now - drains_since)) -ge 2 ] && no_starter; then
        leave TERM $OK drained "ordered by $ordered_by"
        return
    fi
    if [ "$DRONE_WALLTIME_S" -gt 0 ]; then
        left_s=$((began + DRONE_WALLTIME_S - now))
        if [ $left_s -le "$DRONE_GRACE_S" ]; then
            leave TERM $OK walltime "the end of its $DRONE_WALLTIME_S s"
        elif [ $left_s -le "$DRONE_RETIRE_S" ] && [ "$running" -eq 0 ]; then
            leave TERM $OK walltime "too near the end of its $DRONE_WALLTIME_S s for another job"
        fi
    fi
    if [ "$running" -eq 0 ] && read -r word _ <"$D/checks.state" && [ "$word" != ok ]; then
        case $word in hung) code=$CHECK_HUNG ;; *) code=$CHECK_FAILED ;; esac
        leave TERM $code "check-$word" "$(said_by_checks)"
    fi
}

rm -rf "$D" outcome
mkdir -p "$D/tmp"
scrub
find_condor
check_first
mps_parts=$DRONE_SHARES            # each process may have such a part of a GPU's memory
[ "$DRONE_VRAM_POOL" = 0 ] || mps_parts=1
[ "$DRONE_SHARING" != mps ] || start_mps
choose_guard
write_config
placed_at=''
place_token
say "checked; starts HTCondor from $prefix"
start_condor

launched=$now joined='' heard=$now asking='' asked_at=0 pool_says='' gone_at=0 pause_s=1
mapped=none
may_go_as='' idle_since=$now order='' ordered_by='' order_asked_at=$now drains_since=''
ask_every_s=$((DRONE_POOL_LOST_S / 4 < 120 ? DRONE_POOL_LOST_S / 4 + 1 : 120))
while alive "$master"; do
    if [ -n "$leaving" ]; then
        [ "$asked" != QUIT ] || leave QUIT "$leave_code" "$leave_reason" "$leave_why, then told to hurry"
        [ "$now" -lt "$leave_by" ] || break
        rest 0.2
    elif [ -n "$asked" ]; then
        leave "$asked" $OK stopped "told to leave by SIG$asked"
    else
        look
        [ -z "$drains_since" ] || [ "$running" -gt 0 ] || pause_s=0
        [ -n "$leaving" ] || if [ "$pause_s" -eq 0 ]; then rest 0.3; else rest 1; fi
    fi
done

now=$(uptime_s)
# It may still be there: a master that talks to a hanging collector is deaf for 20 s. Ending what is left is next.
[ -n "$leaving" ] || { wait "$master"; ended_by_itself $?; }
finish "$leave_code" "$leave_reason" "$leave_why"
