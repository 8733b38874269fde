# shellcheck shell=bash disable=SC2034  # train.sbatch reads this file, and uses what is set here
# What one cluster needs around every job. Keep what applies as coca_train.site.sh in the folder you submit from, or
# name it: SITE=/path/to/site.sh sbatch … train.sbatch. It is read at each start, before anything else.

# Modules, or a virtual environment:
# module load cuda/12.8
# source "$HOME/venv/bin/activate"

# Apptainer (Singularity): the words in front of each python.
# before=(apptainer exec --nv --bind "$PWD,/scratch" "$HOME/images/coca_train.sif")

# Enroot with Pyxis: srun starts each task inside of the container; so does the script with what it asks python itself.
# srun_options+=(--container-image="$HOME/images/coca_train.sqsh" --container-mounts="$PWD:$PWD,/scratch" --container-workdir="$PWD")
# here=(srun --overlap --nodes 1 --ntasks 1 "${srun_options[@]}")

# The network that NCCL and gloo take, where it is not the one they find:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
# export NCCL_IB_HCA=mlx5_0,mlx5_1 NCCL_IB_GID_INDEX=3
# export NCCL_DEBUG=WARN

# Nodes that know each other by other names than Slurm's, and a port that the firewall lets through:
# MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)-ib0
# MASTER_PORT=29500

# CPUs of a rank: those next to its GPU, where Slurm knows them (default: --cpu-bind=cores), and threads in each.
# srun_options+=(--cpu-bind=verbose,cores --distribution=block:block)
# OMP_NUM_THREADS=8

# How long before its time limit a job is warned [seconds], where a step and a validation take longer than a minute:
# LEAD_S=900
