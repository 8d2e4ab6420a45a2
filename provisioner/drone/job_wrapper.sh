#!/bin/sh
# job_wrapper.sh COMMAND ARGUMENT...: HTCondor's USER_JOB_WRAPPER. Give a job its server of MPS and the address of its
# inference service, and run it where it cannot open the GPUs of others. As gpu_wrapper.sh: the second only. As drone_wrapper.sh: run HTCondor itself, with all GPUs of the
# drone. Without a command: print the files to hide.
# Beside it are `guard`, what the drone found out (tools: its PATH, uid, gid, ...), and `gpus`, a line for each GPU and
# MIG instance of the drone: its UUID, and the device files of its own. A job may set any variable, but not $0.
here=${0%/*} tools=/usr/sbin:/usr/bin:/sbin:/bin
# shellcheck disable=SC1091
. "$here/guard"

# The tools of this script get the drone's PATH and no libraries of the job's. The job gets its own values back. (A shell
# makes itself a PATH, unexported, where there is none.)
# shellcheck disable=SC2016
become='for name in PATH LD_LIBRARY_PATH LD_PRELOAD; do
        case $1 in x*) export "$name=${1#x}" ;; *) unset $name ;; esac
        shift
    done
    exec "$@"'
session=
if [ $# -gt 0 ]; then
    path=
    case $(export -p) in *'export PATH='*) path=x$PATH ;; esac
    if [ "${0##*/}" = job_wrapper.sh ] && [ -x "$here/bin/nvidia-smi" ]; then
        path=${path:-x/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
        path=x$here/bin:${path#x}
    fi
    # A session of condor_ssh_to_job: sshd, whose shells read their environment from a file beside its configuration.
    for last; do :; done
    # shellcheck disable=SC2154
    case $last in "${_CONDOR_SCRATCH_DIR:-?}"/.condor_ssh_to_job_*/sshd_config) session=${last%/*}/env.sh ;; esac
    set -- /bin/sh -c "$become" become "$path" \
        "${LD_LIBRARY_PATH+x$LD_LIBRARY_PATH}" "${LD_PRELOAD+x$LD_PRELOAD}" "$@"
fi
unset LD_LIBRARY_PATH LD_PRELOAD
export PATH="$tools"

refuse_job() {
    echo "drone: $*" >&2
    echo "$*" >"${_CONDOR_WRAPPER_ERROR_FILE:-/dev/null}"
    exit 1
}
machine() { sed -n "s/^$1 = \"\{0,1\}\([^\",]*\).*/\1/p" "${_CONDOR_MACHINE_AD:-/dev/null}" | head -n 1; }
job() { sed -n "s/^$1 = \"\(.*\)\"\$/\1/p" "${_CONDOR_JOB_AD:-/dev/null}" | head -n 1 | tr -cd 'A-Za-z0-9@#._-'; }

# The job's GPU has a server of MPS: that one, with the limit of the job. (A job sees one GPU: its device 0.)
join_mps() {
    assigned=$(machine AssignedGPUs)
    while read -r number id uuid mib; do [ "$id" != "$assigned" ] || break; done <"$here/mps/gpus"
    [ "$id" = "${assigned:-?}" ] || refuse_job "there is no MPS for the GPU '$assigned'"
    case ${CUDA_VISIBLE_DEVICES:-} in "$assigned" | "$uuid") export CUDA_VISIBLE_DEVICES="$uuid" ;; esac
    pooled=$(machine GPUMem)        # of a pool the job has what it asked for
    mib=${pooled:-$mib}
    export CUDA_MPS_PIPE_DIRECTORY="$here/mps/$number"
    export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=${mib}M"
    mine=${_CONDOR_SCRATCH_DIR#"$here"/execute/}        # HTCondor 25 has dir_N/scratch
    mine=$here/mps/jobs/${mine%%/*}
    [ -z "$session" ] || mine=/dev/null     # its job has written that
    owner=$(job Owner)
    echo "$number $(job GlobalJobId) ${owner:-unknown}" >"$mine"
}

# The balancer of the first service that has a model which the job announces, or of the only service. HTCondor starts
# containers without the environment, but for variables with such a prefix. A job may have an address of its own.
offer_inference() {
    announced=" * $(sed -n 's/^WantsInference = //Ip' "${_CONDOR_JOB_AD:-/dev/null}" | tr -c 'A-Za-z0-9._:+-' ' ') "
    while read -r model host port; do
        case $announced in *" $model "*) ;; *) continue ;; esac
        for prefix in '' SINGULARITYENV_ APPTAINERENV_; do
            export "${prefix}SONIC_LOCAL_BALANCER_HOST=$host" "${prefix}SONIC_LOCAL_BALANCER_PORT=$port"
        done
        return
    done <"$here/inference"
}

# As a child, so that its clients are ended before it is killed. Python, because a shell cannot tell a job that a signal
# ended from one that exits with 128 and the signal's number.
run_under_mps() {
    read -r vacate_s control python <"$here/mps/wrapper"
    if [ -n "$python" ] && "$python" -I -S -c '' 2>/dev/null; then
        exec "$python" -I -S "$here/mps_job.py" "$mine" "$vacate_s" "$control" /bin/sh "$here/gpu_wrapper.sh" "$@"
    fi
}

# hidden_files: the device files of GPUs that the command was not given. Drivers share the others (nvidiactl, ...), but
# with a command that was given none.
hidden_files() {
    case ${0##*/} in drone_wrapper.sh) given='*' ;; *) given=$(echo "${_CONDOR_AssignedGPUs:-}" | tr ',' ' ') ;; esac
    own=
    set -f     # `*` is a pattern for UUIDs, no file
    while read -r uuid files; do
        # shellcheck disable=SC2254
        for id in $given; do case $uuid in $id*) own="$own $files" ;; esac; done
    done <"$here/gpus"
    set +f
    for file in /dev/nvidia* /dev/nvidia-caps/* /dev/dri/card* /dev/dri/render* /dev/kfd /dev/accel/* ${GUARD_ALSO:-}; do
        [ -c "$file" ] || continue
        case "$own :$file" in
            *" $file "*) ;;
            ' :'* | *:/dev/nvidia[0-9]* | *:/dev/nvidia-caps/*) echo "$file" ;;
            *:/dev/nvidia*) ;;
            *) echo "$file" ;;
        esac
    done
}

# guard_gpus COMMAND...: become the command in a user and mount namespace in which these files cannot be opened. In the
# first namespace it could undo that, so it gets another one, in which it has its own uid and no capability.
guard_gpus() {
    hidden=$(hidden_files)
    if [ $# -eq 0 ]; then echo "$hidden"; exit; fi
    [ -n "$hidden" ] || exec "$@"
    # Mounts of the host (autofs, CVMFS) still come through.
    # shellcheck disable=SC2154
    exec "$unshare" --user --map-root-user --mount --propagation slave /bin/sh -c "$hide" hide \
        "$unshare" "$mount" "$uid" "$gid" "$here/group" "$hidden" "$@"
}
# HTCondor starts the job again, elsewhere, if there is a file of the wrapper's failure.
# The group tty has no number there, and sshd would give terminals to it: /etc/group is one without it.
# shellcheck disable=SC2016
hide='unshare=$1 mount=$2 uid=$3 gid=$4 group=$5 hidden=$6
    shift 6
    [ ! -r "$group" ] || "$mount" --bind "$group" /etc/group 2>/dev/null
    for file in $hidden; do
        why=$("$mount" --bind "$file" "$file" 2>&1) &&
            why=$("$mount" -o remount,bind,nodev,nosuid,noexec "$file" 2>&1) && continue
        echo "cannot hide $file: $why" >&2
        [ -z "${_CONDOR_WRAPPER_ERROR_FILE:-}" ] || echo "cannot hide $file: $why" >"$_CONDOR_WRAPPER_ERROR_FILE"
        exit 71
    done
    exec "$unshare" --user --map-user="$uid" --map-group="$gid" -- "$@"'

tell_session() {
    [ ! -x "$here/bin/nvidia-smi" ] || echo "export PATH='$here/bin':\"\${PATH:-/usr/bin:/bin}\""
    export -p | grep -E '^export (CUDA_(MPS_|VISIBLE_DEVICES)|SONIC_)'
}

case ${0##*/} in
    drone_wrapper.sh) guard_gpus "$@" ;;
    job_wrapper.sh)
        [ ! -e "$here/mps/gpus" ] || join_mps
        [ ! -r "$here/inference" ] || [ -n "${SONIC_LOCAL_BALANCER_HOST:-}" ] || offer_inference
        [ ! -w "$session" ] || tell_session >>"$session"
        [ ! -e "$here/mps/gpus" ] || run_under_mps "$@" ;;
esac
# shellcheck disable=SC2154
[ "$guard_jobs" = no ] || guard_gpus "$@"
exec "$@"
