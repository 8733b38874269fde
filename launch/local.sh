#!/usr/bin/env bash
# All GPUs of this machine (or NPROC processes): launch/local.sh +experiment=coca_350m
# Of several machines without a scheduler, the same line typed on each: NODES=2 HEAD=node-1:29500 launch/local.sh +experiment=coca_350m
# Environment only: hyper-parameters are arguments.
set -euo pipefail
if [ -z "${NPROC:-}" ]; then
    NPROC=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || NPROC=1
    [ "$NPROC" -gt 0 ] || NPROC=1
else
    most=$(python -c "from coca_train.runtime.machine import most_processes; print(most_processes())")
    if ! [[ $NPROC =~ ^[1-9][0-9]{0,5}$ ]] || [ "$NPROC" -gt "$most" ]; then
        echo "NPROC=$NPROC: 1 to $most processes are possible on this machine. Fix: NPROC=$most, or fewer" >&2
        exit 2
    fi
fi
options=(--standalone)
if [ "${NODES:-1}" -gt 1 ]; then
    : "${HEAD:?HEAD=host:port names one of the $NODES machines, the same on each}"
    options=(--nnodes "$NODES" --rdzv-backend c10d --rdzv-endpoint "$HEAD" --rdzv-id "${RUN_ID:-coca_train}")
fi
options+=(--nproc-per-node "$NPROC")
# A save must fit between SIGTERM and SIGKILL; older torchruns have 30 s and no option.
if torchrun --help 2>/dev/null | grep -q -- --shutdown-timeout; then
    options+=(--shutdown-timeout "${SHUTDOWN_TIMEOUT:-300}")
fi
# By itself torchrun hands on SIGTERM, SIGINT, SIGHUP and SIGQUIT, SIGHUP even under nohup; of the others it dies.
if torchrun --help 2>/dev/null | grep -q -- --signals-to-handle; then
    handled=SIGTERM,SIGINT,SIGQUIT,SIGUSR1,SIGUSR2
    [ -n "$(trap -p SIGHUP)" ] || handled+=,SIGHUP
    options+=(--signals-to-handle "$handled")
fi
exec torchrun "${options[@]}" -m coca_train "$@"
