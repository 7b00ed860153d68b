#!/bin/sh
# Everything that needs a card, in one go and under 8 minutes; safe to run again.
#
#   tests/gpu/run.sh                    build, check, sanitise, measure, print one table
#   tests/gpu/run.sh --no-build         with what `make gpu-tests` left in build/
#   tests/gpu/run.sh --bundle FILE      with the programs of `make gpu-bundle`, from elsewhere
#   tests/gpu/run.sh --only "ops train" some groups: ops model memory train bench swarm race, and
#                                       why: where the time goes (not part of a whole run)
#   tests/gpu/run.sh --dry-run cpu      the whole script with toy sizes on a CPU: no figures
#
# PYTHON=FILE     tried first; needed are PyTorch for the comparisons with it, and pytest, numpy,
#                 Pillow, requests for the swarm.  What is missing is said, the rest runs.
# BUILD_DIR, CUDA_ARCHS, SECONDS_MAX (480): steps that would begin later than that do not run.
# SLOWER=N        every limit of time is N times as long, for a busy machine.
#
# Figures go to build/figures/gpu.json, logs to build/figures/gpu/.
# Exit 0: every step passed and every bound holds.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${BUILD_DIR:-build} device=cuda:0 torch_device=cuda make=1 bundle='' dry='' only='' begun=$(date +%s)
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) make='' ;;
    --bundle) bundle=${2:?--bundle needs a file} make='' && shift ;;
    --only) only=" ${2:?--only needs groups} " && shift ;;
    --dry-run) [ "${2:-}" = cpu ] && dry=1 device=cpu torch_device=cpu && shift ;;
    *) sed -n '2,19s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift
done
slower=${SLOWER:-1}
end=$((begun + slower * ${SECONDS_MAX:-480}))
figures=$build/figures
pythons="${PYTHON:-} python3 /usr/bin/python3 ${XDG_CACHE_HOME:-$HOME/.cache}/skerry/references/bin/python"
[ -n "$bundle" ] && build=$build/bundle
parts=$figures/gpu
rm -rf "$parts" && mkdir -p "$parts" || exit 2

note() { # NAME RESULT SECONDS: a line of the table
    printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$parts/steps.tsv"
    printf '%-58s %5s s  %s\n' "$1" "$3" "$2"
}

# step NAME SECONDS COMMAND...: its output goes to a log of its own, whose end is shown on failure.
step() {
    name=$1 limit=$(($2 * slower)) start=$(date +%s)
    shift 2
    left=$((end - start))
    [ $left -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 3 ]; then
        note "$name" "not run: no time left" 0
        return 1
    fi
    log=$parts/$(printf %s "$name" | tr -c 'A-Za-z0-9' _).log
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    rc=$?
    result=ok
    [ $rc -ne 0 ] && result="FAILED ($rc)"
    [ $rc -eq 124 ] && result="FAILED: over $limit s"
    note "$name" "$result" $(($(date +%s) - start))
    [ $rc -ne 0 ] && tail -n 15 "$log" | cut -c1-300 | sed 's/^/    | /'
    return $rc
}

skip() { note "$1" "not run: $2" 0; }
group() { [ -z "$only" ] || [ "${only#* "$1" }" != "$only" ]; }

# ---- programs, Python, libraries ----------------------------------------
if [ -n "$bundle" ]; then
    rm -rf "$build" && mkdir -p "$build"
    # tar needs xz for it, which a small machine may not have; Python has its own.
    # shellcheck disable=SC2016
    step "unpack" 90 sh -c 'tar xf "$1" -C "$2" || python3 -m tarfile -e "$1" "$2"' sh "$bundle" "$build" || exit 1
elif [ -n "$make" ]; then
    cuda=1
    [ -n "$dry" ] && cuda=0
    step "build" 400 make -j"$(nproc)" CUDA=$cuda BUILD_DIR="$build" gpu-tests || exit 1
fi
gpu=$build/release/gpu tools=$build/release/tests/tools/worker

also() { export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$1"; }
# Where containers are given the driver's libraries.
[ -d /usr/local/nvidia/lib64 ] && also /usr/local/nvidia/lib64

# The first Python that runs this; nothing if none does.
python_with() {
    for p in $pythons; do
        command -v "$p" >/dev/null && timeout 90 "$p" -c "$1" >/dev/null 2>&1 && echo "$p" && return
    done
}
card='; assert torch.cuda.is_available()' no_torch='no PyTorch that sees the card'
[ -n "$dry" ] && card='' no_torch='no PyTorch with fused attention'
python=$(python_with 'import json')
py_swarm=$(python_with 'import pytest, requests, numpy, PIL')
py_model=$(python_with "import pytest, torch$card")
py_torch=$(python_with "import torch; torch.nn.functional.scaled_dot_product_attention$card")
[ -n "$py_torch" ] && no_torch=''
[ -n "$python" ] || { echo "run.sh: no python3: the table cannot be made" >&2; exit 2; }

# cuBLASLt, cuDNN (which compiles with NVRTC) and NCCL may be there as Python packages only.
libraries=$("${py_torch:-$python}" - <<'PY'
import glob, os, sys
names = ("libcublasLt.so*", "libcudnn.so*", "libnvrtc.so*", "libnccl.so*")
found = {d for p in sys.path for d in glob.glob(os.path.join(p, "nvidia", "*", "lib")) for n in names if glob.glob(os.path.join(d, n))}
print(":".join(sorted(found)))
PY
)
[ -n "$libraries" ] && also "$libraries"

commit=$(cat "$build/COMMIT" 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown)
{
    echo "commit $commit, $(date -u +%Y-%m-%d), $(nproc) cores"
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    [ -n "$py_torch" ] && "$py_torch" -c 'import torch; print("PyTorch", torch.__version__)'
} | tee "$parts/about"

for program in "$gpu/check_ops" "$gpu/train_bench" "$tools/train_probe" "$tools/llama_probe" "$build/bin/workerd"; do
    [ -x "$program" ] || { echo "run.sh: no $program: make gpu-tests, or --bundle" >&2; exit 1; }
done
step "a device that opens" 60 "$gpu/train_bench" --device $device --dim 16 --depth 1 --heads 2 --grid 2 --batch 1 \
    --seconds 0.1 --out "$parts/open.jsonl" || echo "run.sh: what follows will fail too" >&2

# ---- sizes ---------------------------------------------------------------
if [ -n "$dry" ]; then
    xl='--dim 48 --depth 2 --heads 4 --grid 4 --batch 2 --batch 4 --seconds 0.3'
    small='--dim 32 --depth 2 --heads 2 --grid 4 --batch 64 --seconds 0.3'
    sweep=eager sweep_small=eager refine='' graphs='' cases='32-2-2 or 32-2-4' toy=--small
else
    xl='--dim 1152 --depth 28 --heads 16 --grid 16 --batch 64 --batch 128 --batch 256 --seconds 4'
    small='--dim 384 --depth 12 --heads 6 --grid 8 --batch 64 --batch 256 --batch 1024 --seconds 3'
    sweep=block sweep_small=model refine='--refine model' graphs='--refine graphs' cases=test toy=''
fi
torch_train() { # NAME SECONDS SIZES...
    out=$1 most=$2
    shift 2
    timeout -k 5 "$most" "$py_torch" tests/gpu/torch_train.py --device $torch_device --limit $((most - 30)) \
        --out "$parts/$out.jsonl" "$@"
}

# torch.compile's kernels are made on the processors while the card is checked; the measured runs
# find them in its cache.
prepared=''
if group train && [ -n "$py_torch" ] && [ -z "$dry" ]; then
    # shellcheck disable=SC2086
    torch_train prepare-xl 130 ${xl% --seconds *} --seconds 0 --sweep $sweep $refine >"$parts/prepare-xl.log" 2>&1 &
    prepared=$!
    # shellcheck disable=SC2086
    torch_train prepare-small 130 ${small% --seconds *} --seconds 0 --sweep $sweep_small $graphs \
        >"$parts/prepare-small.log" 2>&1 &
    prepared="$prepared $!"
fi

# ---- is it right? ----------------------------------------------------------
if group ops; then
    for t in $("$gpu/check_ops" list); do
        # cuDNN compiles for each shape of attention, beside torch.compile.
        step "operations against the reference: $t" 120 "$gpu/check_ops" "$t"
    done
    step "operations against the reference: our own attention" 60 env SKERRY_SDPA=own "$gpu/check_ops" attention
    step "operations against the reference: our own convolution" 60 env SKERRY_CONV=own "$gpu/check_ops" frozen_ops
fi
if group model; then
    for t in dit llama; do
        if [ -n "$py_model" ]; then
            step "whole model against PyTorch: $t" 150 env SKERRY_BUILD="$build" SKERRY_DEVICE=$device \
                SKERRY_TORCH_DEVICE=$torch_device "$py_model" -m pytest -q -p no:cacheprovider -k "$cases" \
                "tests/reference/test_$t.py"
        else
            skip "whole model against PyTorch: $t" "no PyTorch with pytest that sees the card"
        fi
    done
fi
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin; command -v compute-sanitizer)
# What NVIDIA's libraries ask of a driver in vain is no error of ours, which our programs check
# themselves.  Timing algorithms would load dozens of kernels, each of which is instrumented.
sanitise() { # TOOL
    [ -n "$dry" ] && skip "compute-sanitizer $1" "no card" && return
    [ -z "$sanitizer" ] && skip "compute-sanitizer $1" "not installed" && return
    with="env SKERRY_TUNE=0 $sanitizer --tool $1 --report-api-errors no --error-exitcode 9"
    for t in adaln decoder; do
        # shellcheck disable=SC2086
        step "compute-sanitizer $1: $t" 60 $with "$gpu/check_ops" $t
    done
    # shellcheck disable=SC2086
    step "compute-sanitizer $1: training steps" 60 $with \
        "$tools/train_probe" $device bf16 32 2 2 2 8 3 "$parts/sanitised.safetensors"
}
preparing() {
    for p in $prepared; do
        kill -0 "$p" 2>/dev/null && return
    done
    return 1
}
# While PyTorch's kernels are made there is time for it; else the figures come first.
memory=''
group memory && memory=wanted
if [ -n "$memory" ] && preparing; then
    sanitise memcheck
    memory=''
fi

# ---- how fast? -------------------------------------------------------------
if [ -n "$prepared" ]; then
    start=$(date +%s)
    # shellcheck disable=SC2086
    wait $prepared
    echo "waited $(($(date +%s) - start)) s for torch.compile" | tee -a "$parts/about"
fi
if group bench; then
    if [ -n "$dry" ]; then
        skip "operations: bandwidth and arithmetic" "no card"
    else
        step "operations: bandwidth and arithmetic" 120 "$gpu/check_ops" bench "$parts/ops.json"
    fi
fi
if group train; then
    # shellcheck disable=SC2086
    step "DiT-XL/2, 256 tokens" 100 "$gpu/train_bench" --device $device $xl --out "$parts/xl.jsonl"
    # shellcheck disable=SC2086
    step "DiT 384x12, 64 tokens" 60 "$gpu/train_bench" --device $device $small --out "$parts/small.jsonl"
    if [ -n "$py_torch" ]; then
        # shellcheck disable=SC2086
        step "DiT-XL/2 in PyTorch" 150 "$py_torch" tests/gpu/torch_train.py --device $torch_device --limit 90 \
            $xl --sweep $sweep $refine --out "$parts/xl-torch.jsonl"
        # shellcheck disable=SC2086
        step "DiT 384x12 in PyTorch" 120 "$py_torch" tests/gpu/torch_train.py --device $torch_device --limit 70 \
            $small --sweep $sweep_small $graphs --out "$parts/small-torch.jsonl"
    else
        skip "DiT-XL/2 in PyTorch" "$no_torch"
        skip "DiT 384x12 in PyTorch" "$no_torch"
    fi
fi
if group swarm; then
    if [ -n "$py_swarm" ]; then
        # shellcheck disable=SC2086
        step "a swarm of a card and two CPUs; start to first step" 150 "$py_swarm" tests/gpu/mixed_swarm.py \
            --build "$build" --device $device $toy --out "$parts/swarm.jsonl"
    else
        skip "a swarm of a card and two CPUs; start to first step" "no Python with pytest, requests, numpy, Pillow"
    fi
fi
[ -n "$memory" ] && sanitise memcheck
group race && sanitise racecheck

# Attention by our own kernels alone, steps without graphs, and the time of each operation.
if [ -n "$only" ] && group why; then
    one=${xl%% --batch*}
    # shellcheck disable=SC2086
    step "why: DiT-XL/2, each operation" 60 "$gpu/train_bench" --device $device $one --batch 64 --profile 3 \
        --out "$parts/why-xl.jsonl" && cat "$log"
    # shellcheck disable=SC2086
    step "why: DiT-XL/2, our own attention" 60 env SKERRY_SDPA=own "$gpu/train_bench" --device $device $one \
        --batch 64 --profile 3 --out "$parts/why-own.jsonl" && cat "$log"
    one=${small%% --batch*}
    # shellcheck disable=SC2086
    step "why: DiT 384x12, each operation" 60 "$gpu/train_bench" --device $device $one --batch 64 --profile 20 \
        --out "$parts/why-small.jsonl" && cat "$log"
    # shellcheck disable=SC2086
    step "why: DiT 384x12, no graphs" 60 env SKERRY_CUDA_GRAPHS=0 "$gpu/train_bench" --device $device $one \
        --batch 64 --out "$parts/why-plain.jsonl" && cat "$log"
fi

# ---- one table -------------------------------------------------------------
echo
cat "$parts/about"
out=$figures/gpu.json
[ -n "$dry" ] && out=$figures/gpu-dry-run.json
"$python" tests/gpu/figures.py --parts "$parts" --out "$out" --torch "$no_torch" ${dry:+--dry-run} >"$parts/table"
verdict=$?
cat "$parts/table"
echo "$(($(date +%s) - begun)) s"
exit $verdict
