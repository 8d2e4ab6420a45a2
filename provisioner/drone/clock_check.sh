#!/bin/sh
# This host's clock agrees with the collector's: tokens, the drone's end and its jobs' times depend on it. The drone
# writes down by how many seconds the collector is ahead when the pool lists it.

limit=${DRONE_CLOCK_LIMIT_S:-300}
if ! { read -r ahead <"${DRONE_DIR:-.}/condor/clock"; } 2>/dev/null; then echo "not in the pool yet"; exit 77; fi
case $ahead in -*) by=${ahead#-} side='ahead of' ;; *) by=$ahead side=behind ;; esac
case $by in '' | *[!0-9]*) echo "no number: $ahead"; exit 77 ;; esac
echo "this host's clock is $by s $side the collector's"
[ "$by" -le "$limit" ]
