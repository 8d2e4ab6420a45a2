#!/bin/sh
# limit: 60
# The directory that jobs run in takes a file, executes it, and has room: on one that does not, HTCondor puts each job on
# hold. While jobs run, the room that is left is theirs to use, and is not judged.

dir=${DRONE_DIR:-.}/condor
if ! probe=$(mktemp "$dir/scratch.XXXXXX" 2>/dev/null); then echo "cannot write in $dir"; exit 1; fi
trap 'rm -f "$probe"' EXIT
printf '#!/bin/sh\nexit 0\n' 2>/dev/null >"$probe"
chmod 700 "$probe"
if [ ! -s "$probe" ]; then echo "cannot write in $dir: no space left"; exit 1; fi
if ! "$probe" 2>/dev/null; then echo "cannot execute a file in $dir: is it mounted noexec?"; exit 1; fi
if ! dd if=/dev/zero of="$probe" bs=65536 count=16 2>/dev/null; then echo "cannot write 1 MiB in $dir"; exit 1; fi

for job in "$dir"/execute/dir_*; do
    if [ -d "$job" ]; then echo "$dir takes and executes files; jobs run"; exit 0; fi
done
floor=${DRONE_DISK_MIB:-1024}
[ "$floor" -le 1024 ] || floor=1024
free=$(df -Pk "$dir" 2>/dev/null | sed -n '$s/.* \([0-9][0-9]*\)  *[0-9][0-9]*% .*/\1/p')
case $free in '') echo "df tells nothing of $dir"; exit 0 ;; esac
free=$((free / 1024))
if [ "$free" -lt "$floor" ]; then echo "$free MiB free in $dir: at least $floor MiB are needed"; exit 1; fi
echo "$dir takes and executes files; $free MiB free"
