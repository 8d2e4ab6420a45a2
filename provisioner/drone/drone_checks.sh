# Checks of a drone script, before it takes work. Needs $clean and $D.
write_checks() {
    mkdir -p "$D/checks"
    cat >"$D/run_checks.sh" <<'RUN_CHECKS'
exit 71 # @include run_checks.sh
RUN_CHECKS
    cat >"$D/checks/scratch_check.sh" <<'SCRATCH_CHECK'
exit 71 # @include scratch_check.sh
SCRATCH_CHECK
    cat >"$D/checks/names_check.sh" <<'NAMES_CHECK'
exit 71 # @include names_check.sh
NAMES_CHECK
    cat >"$D/checks/clock_check.sh" <<'CLOCK_CHECK'
exit 71 # @include clock_check.sh
CLOCK_CHECK
    if [ "$DRONE_GPUS" -gt 0 ]; then write_gpu_checks; fi
    add_site_checks
}
# A site's check of the same name takes the place of ours.
add_site_checks() {
    [ ! -d checks ] || cp -p checks/* "$D/checks/" 2>/dev/null
    for file in "$D/checks"/*; do [ ! -e "$file" ] || chmod 700 "$file"; done
}
write_gpu_checks() {
    cat >"$D/checks/gpu_check.sh" <<'GPU_CHECK'
exit 71 # @include gpu_check.sh
GPU_CHECK
    # The others ask HTCondor for the GPUs.
    [ -n "${DRONE_DISCOVERY:-}" ] || return 0
    cat >"$D/checks/gpu_discovery.sh" <<'GPU_DISCOVERY'
exit 71 # @include gpu_discovery.sh
GPU_DISCOVERY
    cat >"$D/gpu_health.py" <<'GPU_HEALTH'
exit 71 # @include gpu_health.py
GPU_HEALTH
}
write_mps_check() {
    cat >"$D/checks/mps_check.sh" <<'MPS_CHECK'
exit 71 # @include mps_check.sh
MPS_CHECK
}

# The verdict as a sentence: "failed NAME: why" becomes "check NAME failed: why".
said_by_checks() { sed 's/^\([a-z]*\) \([^:]*\):/check \2 \1:/' "$D/checks.state"; }

check_first() {
    write_checks
    # shellcheck disable=SC2086
    $clean sh "$D/run_checks.sh" "$D/checks" "$D/checks.state" "$DRONE_CHECK_LIMIT_S" &
    checker=$!
    while alive $checker; do
        [ -z "$asked" ] || { kill -TERM $checker 2>/dev/null; finish $OK stopped "told to leave while the checks ran"; }
        rest 0.2
    done
    wait $checker
    code=$?
    [ $code -ne 0 ] || return
    [ -s "$D/checks.state" ] || echo "failed all: the checks did not run" >"$D/checks.state"
    read -r word _ <"$D/checks.state"
    say "$(said_by_checks)"
    finish $code "check-$word" "$(said_by_checks)"
}
