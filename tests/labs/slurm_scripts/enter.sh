#!/bin/bash
# enter.sh ROOT RUN [DIRECTORY...]: process 1 of a lab, in namespaces of its own (slurm_lab.py starts it).
#
# ROOT, which get-slurm.sh made and labs share, gets an overlay in memory. RUN/lab and each DIRECTORY are the same
# inside and outside. All that is mounted here goes when this process goes, and so does every process of the lab.
set -euo pipefail
root=$1 run=$2
shift 2

hostname login
mount --make-rprivate /
mkdir -p "$run/memory" "$run/root"
mount -t tmpfs -o mode=755 lab "$run/memory"
mkdir "$run/memory/upper" "$run/memory/work"
inside=$run/root
mount -t overlay -o "lowerdir=$root,upperdir=$run/memory/upper,workdir=$run/memory/work" lab "$inside"
mount -t proc proc "$inside/proc"
mount --rbind /sys "$inside/sys"
mount -t tmpfs -o mode=755 lab "$inside/run"

mount -t tmpfs -o mode=755 lab "$inside/dev"
for device in null zero full random urandom tty; do
    : >"$inside/dev/$device"
    mount --bind "/dev/$device" "$inside/dev/$device"
done
mkdir "$inside/dev/pts" "$inside/dev/shm" "$inside/dev/lab"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 lab "$inside/dev/pts"
mount -t tmpfs -o mode=1777 lab "$inside/dev/shm"
ln -s pts/ptmx "$inside/dev/ptmx"
ln -s /proc/self/fd "$inside/dev/fd"
# Slurm counts only GPUs that have a device file. These are what /dev/null is.
for gpu in 0 1 2 3 4 5 6 7; do mknod -m 666 "$inside/dev/lab/gpu$gpu" c 1 3; done

for directory in "$run/lab" "$@"; do
    mkdir -p "$inside$directory"
    mount --bind "$directory" "$inside$directory"
done
mount --bind "$run/lab/etc" "$inside/etc/slurm"
for directory in /var/spool/slurm /var/log/slurm /run/slurm; do
    mkdir -p "$inside$directory"
    chroot "$inside" chown slurm "$directory"
done
echo '127.0.0.1 localhost login' >"$inside/etc/hosts"
echo login >"$inside/etc/hostname"

# It only waits, and buries orphans (bash does).
exec chroot "$inside" /bin/bash -c ': >"$1/lab/entered"; while :; do sleep 100000 & wait; done' lab "$run"
