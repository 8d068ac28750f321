#!/bin/sh
# Runs every test and benchmark that needs a GPU, in at most nine minutes; writes to ${OUT:-benchmarks/results}.
#
# A part that fails or runs out of time does not stop the others. The last lines say which parts passed, failed, were cut
# off, and did not run. Exit status: 0 if all passed, 1 if one failed or was cut off, 2 if PyTorch finds no GPU.
set -u
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks/results}
jobs=${JOBS:-8}
mkdir -p "$out"
passed="" failed="" cut="" skipped=""

# Python reports and writes what it has when it is interrupted; it is killed if that takes longer than 10 seconds.
limited() {
    limit=$1
    shift
    timeout -s INT -k 10 "$limit" "$@"
}

note() { # name, exit status
    case $2 in
        0) passed="$passed $1" ;;
        124 | 137) cut="$cut $1" ;;
        *) failed="$failed $1" ;;
    esac
}

part() {
    name=$1
    limit=$2
    shift 2
    echo "== $name"
    limited "$limit" "$@" > "$out/$name.log" 2>&1
    note "$name" $?
    tail -n 15 "$out/$name.log"
}

# Several processes run the tests, each a share of them, so that kernels are compiled in parallel.
tests() {
    echo "== tests"
    rm -f "$out"/tests.*
    files=$(grep -rl --include='test_*.py' --exclude-dir=emulator '^pytestmark = pytest.mark.gpu\|^@pytest.mark.gpu' tests)
    # shellcheck disable=SC2086
    if ! limited 45 python -m pytest -q --collect-only -m gpu -p no:cacheprovider $files > "$out/tests.log" 2>&1; then
        tail -n 15 "$out/tests.log"
        note tests 1
        return
    fi
    grep '::' "$out/tests.log" > "$out/tests.all"
    running=""
    for group in $(seq 1 "$jobs"); do
        awk "NR % $jobs == $group - 1" "$out/tests.all" > "$out/tests.$group"
        test -s "$out/tests.$group" || continue
        limited 180 python -m pytest -q -m gpu -p no:cacheprovider --junitxml="$out/tests.$group.xml" \
            "@$out/tests.$group" > "$out/tests.$group.log" 2>&1 &
        running="$running $group:$!"
    done
    for process in $running; do
        wait "${process#*:}"
        note "tests.${process%%:*}" $?
        tail -n 5 "$out/tests.${process%%:*}.log"
    done
}

python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "gpu.sh: PyTorch finds no GPU; nothing ran"
    exit 2
}
{
    nvidia-smi || rocminfo
    git rev-parse HEAD
    python -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
} > "$out/machine.log" 2>&1

# gsplat compiles its kernels at first use; do it beside the tests.
compiling=""
if python -c 'import gsplat' 2> /dev/null; then
    TORCH_CUDA_ARCH_LIST=$(python -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())')
    export TORCH_CUDA_ARCH_LIST MAX_JOBS=8
    limited 235 python -c 'from gsplat.cuda._backend import _C; assert _C is not None' > "$out/gsplat.log" 2>&1 &
    compiling=$!
fi
tests
compiled=1
if [ -n "$compiling" ]; then
    wait "$compiling"
    compiled=$?
fi
part run 115 python -m benchmarks.run --device cuda --json "$out/run.jsonl"
part profile 25 python -m benchmarks.run --device cuda --profile "$out/profile.txt"
if [ -z "$compiling" ]; then
    skipped="$skipped peers (gsplat is not installed)"
elif [ "$compiled" -eq 0 ]; then
    part peers 85 python -m benchmarks.peers --json "$out/peers.jsonl"
else
    skipped="$skipped peers (gsplat was not compiled, see gsplat.log)"
fi

echo "passed:${passed:- none}"
echo "failed:${failed:- none}"
echo "cut off:${cut:- none}"
echo "not run:${skipped:- none}"
[ -z "$failed$cut" ]
