#!/bin/sh
# USER_JOB_WRAPPER of the drone's startd: prepares what a job needs on shared GPUs, then runs the job ("$@").

here=${0%/*}

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
    [ "$id" = "$assigned" ] || refuse_job "there is no MPS for the GPU '$assigned'"
    case ${CUDA_VISIBLE_DEVICES:-} in "$assigned" | "$uuid") export CUDA_VISIBLE_DEVICES="$uuid" ;; esac
    pooled=$(machine GPUMem)        # of a pool the job has what it asked for
    mib=${pooled:-$mib}
    export CUDA_MPS_PIPE_DIRECTORY="$here/mps/$number"
    export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=${mib}M"
    mine=${_CONDOR_SCRATCH_DIR#"$here"/execute/}        # HTCondor 25 has dir_N/scratch
    mine=$here/mps/jobs/${mine%%/*}
    owner=$(job Owner)
    echo "$number $(job GlobalJobId) ${owner:-unknown}" >"$mine"
}

# As a child, so that its clients are ended before it is killed. Python, because a shell cannot tell a job that a signal
# ended from one that exits with 128 and the signal's number.
run_under_mps() {
    read -r vacate_s control python <"$here/mps/wrapper"
    if [ -n "$python" ] && "$python" -I -S -c '' 2>/dev/null; then
        exec "$python" -I -S "$here/mps_job.py" "$mine" "$vacate_s" "$control" "$@"
    fi
    exec "$@"
}

if [ -e "$here/mps/gpus" ]; then
    join_mps
    run_under_mps "$@"
fi
exec "$@"
