#!/bin/sh
# guest.sh DIRECTORY: runs DIRECTORY/user_data as root of a machine of its own: own processes, own host name, own files
# but for a common read-only /usr and /etc (of OPENSTACK_GUEST_ROOT), at /mnt what the metadata service would tell it.
# It shares this host's network, for the pool that a drone joins is on loopback. OPENSTACK_GUEST_BIND is a directory
# that is there at the same path, read-only; `shared` in the lab's is there to be written to. The guest ends with its
# parent.
set -eu
root=${OPENSTACK_GUEST_ROOT:?}
bind=${OPENSTACK_GUEST_BIND:?}
person=
[ "$(id -u)" = 0 ] || person="--unshare-user --uid 0 --gid 0"
# The directories above a path: those that bubblewrap makes by itself are open to root alone.
above() { case $1 in / | .) ;; *) above "$(dirname "$1")"; echo "--dir $1" ;; esac }
shared=${OPENSTACK_LAB:?}/shared
# What is no script is for cloud-init alone: such a machine just runs.
# shellcheck disable=SC2016  # for the guest's shell
boot='head -c 2 /mnt/user_data | grep -q "^#!" || exec sleep infinity
    read -r line </mnt/user_data
    exec ${line#??} /mnt/user_data'
# shellcheck disable=SC2086  # words, or nothing
exec "$root/usr/bin/bwrap" $person --unshare-pid --unshare-uts --unshare-ipc --hostname drone --die-with-parent \
    --ro-bind "$root/usr" /usr --ro-bind "$root/etc" /etc --perms 644 --ro-bind-data 9 /etc/hosts \
    --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
    --dev /dev --proc /proc --perms 1777 --tmpfs /tmp --perms 1777 --tmpfs /var/tmp --tmpfs /run \
    --dir /root --dir /home --dir /mnt --dir /var/log --dir /var/lib \
    --ro-bind "$1/user_data" /mnt/user_data --ro-bind "$1/meta_data.json" /mnt/meta_data.json \
    $(above "$bind") --ro-bind "$bind" "$bind" $(above "$shared") --bind "$shared" "$shared" \
    --clearenv --setenv PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv HOME /root \
    --setenv OPENSTACK_SERVER "${OPENSTACK_SERVER:?}" --setenv OPENSTACK_LAB "$OPENSTACK_LAB" \
    --chdir / /bin/sh -c "$boot" 9<<'END'
127.0.0.1 localhost drone
END
