home=/opt/gpu-drone-provisioner
running() { [ -d /run/systemd/system ]; }

after_install() {  # $1: "upgrade", or empty
    systemd-sysusers provisioner.conf
    systemd-tmpfiles --create provisioner.conf
    forget_compiled
    # The service may not write here: without this, each start compiles everything again.
    for python in "$home"/bin/python3.*; do
        [ ! -x "$python" ] || "$python" -m compileall -q -x '/tests?/' "$home/lib/${python##*/}" || :
    done
    if running; then
        systemctl daemon-reload
        # Drones go on without the controller, and it finds them again.
        [ "$1" != upgrade ] || systemctl try-restart provisioner.service provisioner-web.service || :
    fi
}

before_remove() {
    ! running || systemctl --now disable provisioner-backup.timer provisioner.service provisioner-web.service || :
    forget_compiled
}

after_remove() {
    ! running || systemctl daemon-reload
    echo "gpu-drone-provisioner: the record stays in /var/lib/provisioner (or where \`store: path:\` says), its configuration in" \
        "/etc/provisioner, and the accounts stay. Drones that still run end by themselves once they are idle."
}

forget_compiled() {
    find "$home/lib" -name __pycache__ -type d -prune -exec rm -rf {} +
    find "$home/lib" -type d -empty -delete
}
