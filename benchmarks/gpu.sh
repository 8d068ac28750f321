#!/bin/sh
# Runs every test and benchmark that needs a GPU; writes to ${OUT:-benchmarks/results}.
#
#     benchmarks/gpu.sh [--emulated] [PART ...]
#
# Parts, by default all: tests run profile counts memcheck racecheck peers. Each part has a time limit; that of the
# tests, which compile hundreds of kernels, is ${TEST_SECONDS:-420} seconds. A part that fails or times out does not stop
# the others. The last lines say which parts passed, failed, were cut off, and did not run. Exit status: 0 if all passed,
# 1 if one failed or was cut off, 2 if PyTorch does not find a GPU. If the tests do not pass, records of the run say so,
# and do not count. With --emulated, all parts run on an emulated GPU, with one test and tiny scenes, to try out this
# script.
set -u
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks/results}
jobs=${JOBS:-$(nproc)}
mkdir -p "$out"
passed="" failed="" cut="" skipped=""
device=cuda scenes="cloud dense-tile" patience=1
if [ "${1:-}" = --emulated ]; then
    shift
    device=emulated scenes=tiny jobs=1 patience=10
    export EMULATE=sm_80 PYTEST_ADDOPTS="-p tests.emulator.plugin -k 'test_numbers_of_channels_match_reference and 3 and not 32'"
fi

parts=${*:-tests run profile counts memcheck racecheck peers}

chosen() { # part
    case " $parts " in
        *" $1 "*) ;;
        *) false ;;
    esac
}

# An interrupted Python process writes its results so far; it is killed if that takes longer than 10 seconds. Limits are
# for a GPU; emulation gets ten times as long.
limited() {
    limit=$(($1 * patience))
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

part() { # name, seconds, command
    name=$1
    limit=$2
    shift 2
    chosen "$name" || return
    echo "== $name"
    limited "$limit" "$@" > "$out/$name.log" 2>&1
    status=$?
    if [ "$status" -eq 3 ]; then
        skipped="$skipped $name ($(tail -n 1 "$out/$name.log"))"
    else
        note "$name" "$status"
    fi
    tail -n 15 "$out/$name.log"
}

# Several processes run the tests, so that kernels are compiled in parallel.
tests() {
    echo "== tests"
    rm -f "$out"/tests.*
    files=$(grep -rl --include='test_*.py' --exclude-dir=emulator '^\(pytestmark = \|@\|    \)pytest.mark.gpu' tests)
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
        limited "${TEST_SECONDS:-420}" python -m pytest -q -m gpu -p no:cacheprovider --junitxml="$out/tests.$group.xml" \
            "@$out/tests.$group" > "$out/tests.$group.log" 2>&1 &
        running="$running $group:$!"
    done
    for process in $running; do
        wait "${process#*:}"
        note "tests.${process%%:*}" $?
        tail -n 5 "$out/tests.${process%%:*}.log"
    done
}

sanitize() { # tool
    chosen "$1" || return
    if [ "$device" = emulated ] || ! command -v compute-sanitizer > /dev/null; then
        skipped="$skipped $1 (no compute-sanitizer, or no GPU)"
        return
    fi
    # Each tensor has a separate allocation, so that accesses beyond its end are detected.
    part "$1" 25 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 1 \
        --target-processes all python -m benchmarks.hardware_counts --step tiny
}

[ "$device" = emulated ] || python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "gpu.sh: PyTorch does not find a GPU; nothing ran"
    exit 2
}
{
    nvidia-smi || rocminfo
    git rev-parse HEAD
    python -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
} > "$out/machine.log" 2>&1

# gsplat compiles its kernels at first use; this is done in parallel with the tests.
compiling=""
if chosen peers && [ "$device" = cuda ] && python -c 'import gsplat' 2> /dev/null; then
    TORCH_CUDA_ARCH_LIST=$(python -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())')
    export TORCH_CUDA_ARCH_LIST MAX_JOBS=8
    limited 235 python -c 'from gsplat.cuda._backend import _C; assert _C is not None' > "$out/gsplat.log" 2>&1 &
    compiling=$!
fi
if chosen tests; then
    tests
    export TSPLAT_GPU_TESTS=passed
    [ -z "$failed$cut" ] || TSPLAT_GPU_TESTS=failed
fi
compiled=1
if [ -n "$compiling" ]; then
    wait "$compiling"
    compiled=$?
fi
part run 110 python -m benchmarks.run --device "$device" --json "$out/run.jsonl"
part profile 20 python -m benchmarks.run --device "$device" --profile "$out/profile.txt"
# shellcheck disable=SC2086
part counts 35 python -m benchmarks.hardware_counts --scene $scenes --json "$out/counts.jsonl"
sanitize memcheck
sanitize racecheck
if ! chosen peers; then
    :
elif [ -z "$compiling" ]; then
    skipped="$skipped peers (needs a GPU and gsplat)"
elif [ "$compiled" -eq 0 ]; then
    part peers 200 python -m benchmarks.peers --json "$out/peers.jsonl"
else
    skipped="$skipped peers (gsplat was not compiled, see gsplat.log)"
fi

echo "passed:${passed:- none}"
echo "failed:${failed:- none}"
echo "cut off:${cut:- none}"
echo "not run:${skipped:- none}"
[ "${TSPLAT_GPU_TESTS:-passed}" = passed ] || echo "timings and counts of this run do not count: its tests did not pass"
[ -z "$failed$cut" ]
