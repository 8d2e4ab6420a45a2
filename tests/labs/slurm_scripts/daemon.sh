#!/bin/bash
# daemon.sh NAME LAB: become one daemon of the lab, inside it; LAB is its directory, with all that it has to be told.
# NAME: munged, mariadbd, slurmdbd, slurmctld, slurmd-NODE, slurmrestd, slurmrestd-drone, sshd.
set -euo pipefail
name=$1 lab=$2
. "$lab/settings"
exec >>"$lab/log/$name.out" 2>&1 </dev/null
cd /

as() { exec setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }

case $name in
    munged)
        install -d -o munge -m 755 /run/munge
        [ -s /etc/munge/munge.key ] || head -c 1024 /dev/urandom >/etc/munge/munge.key
        chmod 400 /etc/munge/munge.key
        chown -R munge: /etc/munge /var/log/munge /var/lib/munge
        as munge munged -F ;;
    mariadbd)
        install -d -o mysql /run/mysqld
        # Nothing here outlives the test, so nothing needs to reach a disk. The names are of several versions.
        exec mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock \
            --skip-networking --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 \
            --loose-innodb-snapshot-isolation=OFF --innodb-lock-wait-timeout=900 ;;
    slurmdbd)
        mariadb --socket=/run/mysqld/mysqld.sock -e "
            create database if not exists slurm_acct_db;
            create user if not exists slurm@localhost identified via unix_socket;
            grant all on slurm_acct_db.* to slurm@localhost"
        export MYSQL_UNIX_PORT=/run/mysqld/mysqld.sock
        as slurm slurmdbd -D ;;
    slurmctld)
        as slurm slurmctld -D -i ;;
    slurmd-*)
        mkdir -p "/var/spool/slurm/${name#slurmd-}"
        exec slurmd -D -N "${name#slurmd-}" ;;
    slurmrestd)
        export SLURM_JWT=daemon
        # shellcheck disable=SC2086
        as restd slurmrestd $REST_OPTIONS -a rest_auth/jwt "127.0.0.1:$REST_PORT" ;;
    slurmrestd-drone)
        rm -f "$lab/drone/slurmrestd.sock"
        export HOME=/home/drone
        # shellcheck disable=SC2086
        as drone slurmrestd $REST_OPTIONS -a rest_auth/local "unix:$lab/drone/slurmrestd.sock" ;;
    sshd)
        install -d -m 755 /run/sshd
        exec /usr/sbin/sshd -D -f "$lab/etc/sshd_config" -E "$lab/log/sshd.log" ;;
    *)
        echo "there is no daemon $name"
        exit 64 ;;
esac
