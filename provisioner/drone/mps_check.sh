#!/bin/sh
# limit: 20
# The drone's own MPS control daemon answers: without it jobs would take turns on the GPU, with no limit on its memory.

if ! answer=$(echo get_server_list | nvidia-cuda-mps-control 2>&1); then
    echo "the MPS control daemon does not answer: $(echo "$answer" | tail -n 1)"
    exit 1
fi
echo "the MPS control daemon answers"
