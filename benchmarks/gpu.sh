#!/bin/sh
# Runs every test and benchmark that needs a GPU, in at most nine minutes; writes to ${OUT:-benchmarks/results}.
# A part that fails does not stop the others; the last line lists the parts that failed.
set -u
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks/results}
mkdir -p "$out"
failed=""

part() {
    name=$1
    limit=$2
    shift 2
    echo "== $name"
    if ! timeout "$limit" "$@" > "$out/$name.log" 2>&1; then
        failed="$failed $name"
    fi
    tail -n 15 "$out/$name.log"
}

python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "gpu.sh: PyTorch finds no GPU"
    exit 0
}
nvidia-smi > "$out/machine.log" 2>&1 || rocminfo > "$out/machine.log" 2>&1
part tests 210 python -m pytest -q -m gpu -p no:cacheprovider
part run 150 python -m benchmarks.run --json "$out/run.jsonl"
part peers 120 python -m benchmarks.peers --json "$out/peers.jsonl"
part profile 60 python -m benchmarks.run --profile "$out/profile.txt"
if [ -n "$failed" ]; then
    echo "failed or timed out:$failed"
    exit 1
fi
echo "all parts passed"
