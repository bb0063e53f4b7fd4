#!/usr/bin/env bash
# A Ray cluster for the time of a Slurm job: the first node runs the command, and all of them simulate
# and compute stages. Submit it in the checkout, which all nodes see:
#
#   sbatch --nodes=4 configs/clusters/slurm.sh run vla_ppo \
#     'teacher.placement={kind: hybrid, simulators: 24, cluster: {}}'
#
#SBATCH --job-name=handoff
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
# A signal before the time limit: the run saves, ends, and goes on when it is submitted again.
#SBATCH --signal=B:TERM@120
set -euo pipefail

# A job of its own has a token and a port of its own.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
port=$((20000 + SLURM_JOB_ID % 10000))
# A node or link that is lost is noticed within 10 s.
export RAY_health_check_period_ms=500 RAY_health_check_timeout_ms=2000
export RAY_health_check_failure_threshold=3

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=$(getent ahostsv4 "${nodes[0]}" | awk 'NR == 1 {print $1}')
export RAY_ADDRESS=$first:$port
cores=${SLURM_CPUS_PER_TASK:-1}

ray start --head --node-ip-address="$first" --port="$port" --num-cpus="$cores" --include-dashboard=false --block &
head=$!
# Not `ray stop`, which would end the clusters of other jobs on this node, too.
trap 'kill "$head"; wait "$head" || true' EXIT
if ((${#nodes[@]} > 1)); then
  others=$((${#nodes[@]} - 1))
  # It ends with the job, and with the head.
  srun --overlap --nodes="$others" --ntasks="$others" --ntasks-per-node=1 --cpus-per-task="$cores" \
    --exclude="${nodes[0]}" ray start --address="$RAY_ADDRESS" --num-cpus="$cores" --block &
fi
# What needs more room than there is yet waits for the other nodes.
python -c 'import sys, time, ray
def joined():
    try:
        ray.init(logging_level="ERROR", ignore_reinit_error=True)
    except (ConnectionError, RuntimeError):
        return 0
    return sum(node["Alive"] for node in ray.nodes())
deadline = time.monotonic() + 300
while joined() < int(sys.argv[1]):
    if time.monotonic() > deadline:
        sys.exit(f"not all of {sys.argv[1]} nodes came within 300 s: see the output above.")
    time.sleep(1)' "${#nodes[@]}"

# Signals to the batch script go on to the command, which the shell waits for.
handoff "$@" &
command=$!
trap 'kill -TERM "$command"' TERM
code=0
wait "$command" || code=$?
while kill -0 "$command" 2>/dev/null; do
  wait "$command" || code=$?
done
exit "$code"
