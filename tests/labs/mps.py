"""NVIDIA's MPS for the tests: the real control daemon, and a stand-in for what needs a GPU.

The real ``nvidia-cuda-mps-control`` runs without a GPU, but each of its servers dies at once. The
stand-in answers as it does, and has servers that live and write the lines to their log that were
seen on a GPU. Its clients are processes that write their pid to ``clients`` in its directory of
pipes. Files beside the program change it: with ``no-server`` a server dies at once. What it was
asked, except for questions, is in ``said``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.labs.htcondor import LabError, fetched

STAND_IN = r"""#!/bin/sh
P=$CUDA_MPS_PIPE_DIRECTORY here=$(dirname "$0")
daemon=$P/nvidia-cuda-mps-control.pid
lives() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }
process() { setsid sh -c 'while :; do sleep 1; done' >/dev/null 2>&1 </dev/null & }
log() { echo "[2026-04-28 18:20:41.986 Server $1] $2" >>"$(cat "$P/logs")/server.log"; }
control() { echo "[2026-04-28 18:20:41.986 Control $(cat "$daemon")] $1" >>"$(cat "$P/logs")/control.log"; }
unit() { case $1 in *M) echo $((${1%M} * 1048576)) ;; *) echo $((${1%G} * 1073741824)) ;; esac; }
start_server() {
    process
    server=$!
    control "Starting new server $server for user $1"
    if [ -e "$here/no-server" ]; then kill $server; control "Server $server exited with status 1"; return; fi
    echo $server >"$P/server"
    echo ACTIVE >"$P/status"
    log $server "Creating server context on device 0 (Tesla T4)"
    if [ -s "$P/limit" ]; then
        bytes=$(printf 0x%x "$(unit "$(cat "$P/limit")")")
        log $server "Device pinned memory limit for device 0 set to $bytes bytes"
    fi
    log $server "Server has started"
}
if [ "${1:-}" = -d ]; then
    [ -d "$P" ] || { echo "Cannot access CUDA_MPS_PIPE_DIRECTORY=$P"; exit 1; }
    lives "$daemon" && { echo "An instance of this daemon is already running"; exit 1; }
    rm -f "$P/limit" "$P/server"
    : >"$P/control"
    echo "$CUDA_MPS_LOG_DIRECTORY" >"$P/logs"
    echo "start $CUDA_VISIBLE_DEVICES $CUDA_MPS_LOG_DIRECTORY" >>"$here/said"
    process
    printf %s $! >"$daemon"
    exit 0
fi
lives "$daemon" || { echo "Cannot find MPS control daemon process"; exit 1; }
while read -r verb a b; do
    case $verb in get_*) ;; *) echo "$verb${a:+ $a}${b:+ $b}" >>"$here/said" ;; esac
    case $verb in
        get_server_list) ! lives "$P/server" || cat "$P/server" ;;
        get_server_status) cat "$P/status" ;;
        get_client_list) while read -r each; do ! kill -0 "$each" || echo "$each"; done 2>/dev/null <"$P/clients" ;;
        get_default_device_pinned_mem_limit)
            [ "$a" != 0 ] || [ ! -s "$P/limit" ] || echo "$(($(unit "$(cat "$P/limit")") / 1073741824))G" ;;
        set_default_device_pinned_mem_limit)
            case $a:$b in
                0:[0-9]*[MG]) echo "$b" >"$P/limit" ;;
                0:*) rm -f "$P/limit" ;;
            esac ;;
        start_server) lives "$P/server" || start_server "$b" ;;
        terminate_client) sed -i "/^$b\$/d" "$P/clients" ;;
        quit) ! lives "$P/server" || kill "$(cat "$P/server")"; kill "$(cat "$daemon")" ;;
        *) echo "Unknown command \"$verb\"" ;;
    esac
done
"""


def stand_in(directory: Path) -> Path:
    """Write the stand-in to a directory, and return that."""
    program = directory / "nvidia-cuda-mps-control"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return directory


def real_control(suite: str = "trixie") -> Path:
    """Return the directory of NVIDIA's programs; without them the test is skipped."""
    try:
        return fetched("get-mps.sh", suite)
    except LabError as error:
        pytest.skip(f"no nvidia-cuda-mps-control: {error}")
