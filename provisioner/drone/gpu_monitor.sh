#!/bin/sh
# gpu_monitor.sh DISCOVERY UTILISATION: report zero for each GPU, then run HTCondor's own monitor. HTCondor records the use
# of a job only if there was a report before the job began, and its monitor reports after 10 s.
i=0
for gpu in $("$1" | sed -n 's/^DetectedGPUs="\(.*\)"$/\1/p' | tr -d ,); do
    echo "SlotMergeConstraint = StringListMember(\"$gpu\", AssignedGPUs)"
    echo 'UptimeGPUsSeconds = 0.0'
    echo 'UptimeGPUsMemoryPeakUsage = 0'
    echo "- GPUsSlot$i"
    i=$((i + 1))
done
exec "$2"
