# nvidia-smi of a job, first in its PATH: NVIDIA's own program for the GPUs of the job alone, each with the memory of its
# share. The drone writes two lines before this: `real`, the program; and `share_mib`, the memory of each share: empty for
# whole GPUs, `slot` if it is in the ad of the job's slot.
given=$(echo "${_CONDOR_AssignedGPUs:-}" | tr ',' ' ')
[ -x "$real" ] || { echo "nvidia-smi: $real is not in this container" >&2; exit 127; }
case ${1:--} in [!-]* | -h | --help* | --version) exec "$real" "$@" ;; esac

slot() { sed -n "s/^$1 = \([0-9]*\).*/\1/p" "${_CONDOR_MACHINE_AD:-/dev/null}" 2>/dev/null | head -n 1; }
[ -z "$share_mib" ] || pooled=$(slot GPUMem)
mib=${pooled:-$share_mib}
[ "$mib" != slot ] || mib=$(slot GPUs_GlobalMemoryMb)

# The GPU of each device of the job: of a MIG instance the one that it is on.
listed=$("$real" -L) || { code=$?; echo "$listed"; exit $code; }
own=$(echo "$listed" | while read -r kind rest; do
    uuid=${rest##*UUID: } uuid=${uuid%%)*}
    [ "$kind" != GPU ] || gpu=$uuid
    for id in $given; do case $uuid in "$id"*) echo "$gpu $uuid" ;; esac; done
done)
gpus=$(echo "$own" | cut -d ' ' -f 1 | sort -u | paste -s -d, -)
[ -n "$gpus" ] || { echo "No devices were found"; exit 6; }

fields=
for word; do
    shift
    case $word in
        -L | --list-gpus)
            echo "$listed" | while IFS= read -r line; do
                uuid=${line##*UUID: } uuid=${uuid%%)*}
                case " $(echo "$own" | tr '\n' ' ') " in *" $uuid "*) echo "$line" ;; esac
            done
            exit ;;
        -i | --id) skip=yes; continue ;;        # the job has no others
        --id=* | -i=*) continue ;;
        --query-gpu=*) fields=$(echo "${word#*=}" | tr ',' ' ') ;;
    esac
    if [ -n "${skip:-}" ]; then skip=; continue; fi
    set -- "$@" "$word"
done
[ -n "$mib" ] || exec "$real" -i "$gpus" "$@"
said=$("$real" -i "$gpus" "$@")
code=$?
if [ -n "$fields" ]; then
    echo "$said" | while IFS= read -r line; do
        rest=$line out=
        for field in $fields; do
            value=${rest%%, *}
            case $rest in *', '*) rest=${rest#*, } ;; *) rest= ;; esac
            [ -n "$value" ] || continue
            case $field:$value in
                memory.total:[0-9]* | memory.free:[0-9]* | memory.used:[0-9]*)
                    number=${value%%[!0-9]*}
                    [ "$number" -le "$mib" ] || value=$mib${value#"$number"} ;;
            esac
            out="$out${out:+, }$value"
        done
        echo "$out"
    done
else
    total=$("$real" -i "$gpus" --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
    case $total in '' | *[!0-9]*) total=none ;; esac
    shown=$(printf "%${#total}s" "$mib")
    echo "$said" | sed "s/\([^0-9]\)$total\( *MiB\)/\1$shown\2/g"
fi
exit $code
