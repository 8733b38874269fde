#!/usr/bin/env bash
# All GPUs of this machine (or NPROC processes): launch/local.sh +experiment=coca_350m
# Environment only: hyper-parameters are arguments.
set -euo pipefail
if [ -z "${NPROC:-}" ]; then
    NPROC=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || NPROC=1
    [ "$NPROC" -gt 0 ] || NPROC=1
fi
# A save must fit between SIGTERM and SIGKILL.
exec torchrun --standalone --nproc-per-node "$NPROC" --shutdown-timeout "${SHUTDOWN_TIMEOUT:-300}" -m coca_train "$@"
