#!/bin/sh
# Everything that needs a card, in groups; safe to kill at any second, and to run again.
#
#   tests/gpu/run.sh                      build, check, sanitise, measure, print one table
#   tests/gpu/run.sh --no-build           with what `make gpu-tests` left in build/
#   tests/gpu/run.sh --bundle FILE        with the programs of `make gpu-bundle`, from elsewhere
#   tests/gpu/run.sh --short              all but "whole", in five minutes: what measures nothing runs
#                                         at once, while PyTorch compiles into its cache
#   tests/gpu/run.sh --only "ops bench"   some groups
#   tests/gpu/run.sh --dry-run cpu        the whole script with toy sizes on a CPU: no figures
#
# On a machine that takes calls of 10 minutes, these calls in this order (each is under 8):
#   "ops bench", "train", "model swarm memory", "race whole", "why"
#
#   ops     operations against the reference      bench   bandwidth and arithmetic of each
#   train   the training step, beside PyTorch     whole   DiT-XL/2 in PyTorch, compiled as a whole
#   model   networks against PyTorch              swarm   a card and two CPUs, bit for bit
#   memory  compute-sanitizer memcheck            race    compute-sanitizer racecheck
#   why     the time of each operation, and of ways not taken (not part of a whole run)
#
# Each group writes a record, GROUP-TIME.log, while it runs: what every step printed, figures as
# lines of JSON among it.  Records lie in $OUT, or in build/figures/gpu; none is ever overwritten,
# and the table is of the last result of each step in all that lie there:
#   tests/gpu/figures.py --records DIR
#
# PYTHON=FILE     tried first; needed are PyTorch for the comparisons with it, and pytest, numpy,
#                 Pillow, requests for the swarm.  What is missing is said, the rest runs.
# BUILD_DIR, CUDA_ARCHS, SECONDS_MAX (of a call; 480 with --only, 560 with --short): what would
#                 begin later does not, and what runs by then is ended.
# SLOWER=N        every limit of time is N times as long, for a busy machine.
#
# Exit 0: every step passed and every bound holds.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${BUILD_DIR:-build} device=cuda:0 torch_device=cuda make=1 bundle='' dry='' only='' short='' begun=$(date +%s)
while [ $# -gt 0 ]; do
    case $1 in
    --no-build) make='' ;;
    --short) short=1 ;;
    --bundle) bundle=${2:?--bundle needs a file} make='' && shift ;;
    --only) only=" ${2:?--only needs groups} " && shift ;;
    --dry-run) [ "${2:-}" = cpu ] && dry=1 device=cpu torch_device=cpu && shift ;;
    *) sed -n '2,32s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
    shift
done
case $build in
/*) ;;
*) build=$(pwd)/$build ;;
esac
slower=${SLOWER:-1} most=3600
[ -n "$short" ] && most=560
[ -n "$only" ] && most=480
end=$((begun + slower * ${SECONDS_MAX:-$most}))
figures=$build/figures
records=${OUT:-$figures/gpu${dry:+-dry-run}}
pythons=${PYTHONS:-"${PYTHON:-} python3 /usr/bin/python3 ${XDG_CACHE_HOME:-$HOME/.cache}/skerry/references/bin/python"}
[ -n "$bundle" ] && build=$build/bundle
mkdir -p "$records" "$figures" || exit 2
export PYTHONUNBUFFERED=1

# Lines of a record that begin with "# step ", "# ended ", "# about " and "# processor " are read by figures.py.
open_record() { record=$records/$1-$(date -u +%Y%m%dT%H%M%S).log; }
tell() { printf '%s\n' "$*" | tee -a "$record"; }
ended() { # NAME RESULT SECONDS
    printf '# ended %s s: %s\n' "$3" "$2" >>"$record"
    printf '%-58s %5s s  %s\n' "$1" "$3" "$2"
}

# limit: so many seconds, or those that are left of the call.
within() { # SECONDS
    limit=$(($1 * slower)) now=$(date +%s)
    [ $limit -le $((end - now)) ] || limit=$((end - now))
    [ $limit -gt 0 ] || limit=1
}

# bounded SECONDS COMMAND...: goes on even if the driver holds the command where no signal ends it.
# Its output is a file, since whoever reads a pipe would wait for it.
bounded() {
    seconds=$1
    shift
    timeout -s KILL $((seconds + 10)) timeout -k 5 "$seconds" "$@"
}

# step NAME SECONDS COMMAND...: it prints into the record, whose end is shown on failure.
step() {
    name=$1 start=$(date +%s)
    within "$2"
    shift 2
    printf '# step %s\n' "$name" >>"$record"
    if [ $limit -lt 3 ]; then
        result="not run: no time left"
        ended "$name" "$result" 0
        return 1
    fi
    before=$(wc -c <"$record")
    bounded $limit "$@" >>"$record" 2>&1
    rc=$?
    result=ok
    [ $rc -ne 0 ] && result="FAILED ($rc)"
    [ $rc -eq 124 ] && result="FAILED: over $limit s"
    ended "$name" "$result" $(($(date +%s) - start))
    [ $rc -ne 0 ] && tail -c +$((before + 1)) "$record" | tail -n 16 | cut -c1-300 | sed 's/^/    | /'
    return $rc
}

skip() { printf '# step %s\n' "$1" >>"$record" && ended "$1" "not run: $2" 0; }
wants() { [ -z "$only" ] || [ "${only#* "$1" }" != "$only" ]; }
group() { wants "$1" && open_record "$1"; }

# ---- programs, Python, libraries ----------------------------------------
open_record start
if [ -n "$bundle" ]; then
    rm -rf "$build" && mkdir -p "$build"
    # tar needs xz for it, which a small machine may not have; Python has its own.
    # shellcheck disable=SC2016
    step "unpack" 90 sh -c 'tar xf "$1" -C "$2" || python3 -m tarfile -e "$1" "$2"' sh "$bundle" "$build" || exit 1
elif [ -n "$make" ]; then
    cuda=1
    [ -n "$dry" ] && cuda=0
    step "build" 400 make -j"$(nproc)" CUDA=$cuda BUILD_DIR="${BUILD_DIR:-build}" gpu-tests || exit 1
fi
gpu=$build/release/gpu tools=$build/release/tests/tools/worker
# What check_ops and the tests of whole models run on.
export SKERRY_DEVICE=$device SKERRY_TORCH_DEVICE=$torch_device SKERRY_BUILD="$build"

also() { export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$1"; }
# Where containers are given the driver's libraries.
[ -d /usr/local/nvidia/lib64 ] && also /usr/local/nvidia/lib64

# The first Python that runs this; nothing if none does.  Why each does not is said.
python_with() { # WHAT SECONDS CODE
    for p in $pythons; do
        command -v "$p" >/dev/null || continue
        within "$2"
        [ $limit -ge 10 ] || limit=10 # the table needs it
        bounded $limit "$p" -c "$3" >"$figures/said-$$" 2>&1
        rc=$?
        said=$(tail -n 1 "$figures/said-$$" | cut -c1-200)
        [ $rc -eq 0 ] && tell "# about $1: $p $said" >&2 && echo "$p" && return
        tell "$1: not $p (exit $rc): $said" >&2
    done
}
# cuBLASLt, cuDNN (which compiles with NVRTC) and NCCL may be there as packages of a Python only.
libraries_of() { # PYTHON
    "$1" - <<'PY'
import glob, os, sys
names = ("libcublasLt.so*", "libcudnn.so*", "libnvrtc.so*", "libnccl.so*")
found = {d for p in sys.path for d in glob.glob(os.path.join(p, "nvidia", "*", "lib")) for n in names if glob.glob(os.path.join(d, n))}
print(":".join(sorted(found)))
PY
}

commit=$(cat "$build/COMMIT" 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown)
tell "# about commit $commit, $(date -u +%Y-%m-%d), $(nproc) cores"
command -v nvidia-smi >/dev/null &&
    bounded 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$figures/said-$$" &&
    tell "$(sed 's/^/# about /' "$figures/said-$$")"
python=$(python_with "tables" 60 'import sys; print(sys.version.split()[0])')
[ -n "$python" ] || { echo "run.sh: no python3: the table cannot be made" >&2; exit 2; }
tell "# processor $("$python" tests/tools/processor.py)"
for p in $pythons; do
    libraries=$(libraries_of "$p" 2>/dev/null)
    [ -n "$libraries" ] && also "$libraries" && break
done

card='torch.zeros(1, device="cuda")' no_torch='no PyTorch that sees the card'
[ -n "$dry" ] && card='' no_torch='no PyTorch with fused attention'
torch="import torch; torch.nn.functional.scaled_dot_product_attention; print(torch.__version__); $card"
py_torch=''
# From a cold disk PyTorch and its first context take a minute, which is no failure of theirs.
# The groups of --short ask for themselves, and do not wait for this one.
if [ -z "$short" ] && { wants train || wants whole; }; then
    py_torch=$(python_with "PyTorch" 240 "$torch")
fi

for program in "$gpu/check_ops" "$gpu/train_bench" "$tools/train_probe" "$tools/llama_probe" "$build/bin/workerd"; do
    [ -x "$program" ] || { echo "run.sh: no $program: make gpu-tests, or --bundle" >&2; exit 1; }
done
if [ -z "${OPENS:-}" ]; then # else --short has seen it, and tells PYTHONS
    step "a device that opens" 120 "$gpu/train_bench" --device $device --dim 16 --depth 1 --heads 2 --grid 2 --batch 1 --seconds 0.1
    case $result in
    "FAILED ("*) echo "run.sh: $device does not open, and all that follows needs it: what it said is above" >&2 && exit 1 ;;
    esac
fi

# ---- sizes ---------------------------------------------------------------
if [ -n "$dry" ]; then
    xl='--dim 48 --depth 2 --heads 4 --grid 4' xl_batches='--batch 2 --batch 4' time='--seconds 0.3'
    small='--dim 32 --depth 2 --heads 2 --grid 4' small_batches='--batch 64'
    blocks=eager whole=eager graphs='' cases='32-2-2 or 32-2-4' toy=--small
else
    xl='--dim 1152 --depth 28 --heads 16 --grid 16' xl_batches='--batch 64 --batch 128 --batch 256' time='--seconds 4'
    small='--dim 384 --depth 12 --heads 6 --grid 8' small_batches='--batch 64 --batch 256 --batch 1024'
    blocks=block whole=model graphs='--refine graphs' cases=test toy=''
fi
# Sizes and batches are several words each.
# shellcheck disable=SC2086
ours() { # NAME SECONDS ARGUMENTS...
    name=$1 most=$2
    shift 2
    step "$name" "$most" "$gpu/train_bench" --device $device $time "$@"
}
# shellcheck disable=SC2086
torchs() { # NAME SECONDS ARGUMENTS...: the last third of the time begins nothing new
    name=$1 most=$2
    shift 2
    [ -z "$py_torch" ] && skip "$name" "$no_torch" && return
    step "$name" "$most" "$py_torch" tests/gpu/torch_train.py --device $torch_device $time \
        --limit $((most * slower * 2 / 3)) "$@"
}

# ---- all of it in five minutes ----------------------------------------------
# Groups as calls of their own, each with its folder of records, which are packed again every few
# seconds.  What measures nothing has two fifths of the time, and what it finds to be fast on a busy
# card is not kept for the rest.
parts=$figures/short busy=$figures/busy
left() { echo $(((end - $(date +%s)) / slower)); } # seconds
call() { # GROUP SECONDS [CACHE]
    mkdir -p "$parts/$1"
    env ${3:+XDG_CACHE_HOME="$3"} OPENS=1 PYTHONS="$pythons" SECONDS_MAX="$2" BUILD_DIR="$build" OUT="$parts/$1" \
        sh tests/gpu/run.sh --no-build ${dry:+--dry-run cpu} --only "$1" >"$parts/$1/told" 2>&1
    echo "$1: done after $(($(date +%s) - begun)) s"
}
pack() { tar czf "$records/short.tar.gz.new" -C "$parts" . && mv "$records/short.tar.gz.new" "$records/short.tar.gz"; }
# shellcheck disable=SC2086
if [ -n "$short" ]; then
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$build/inductor}"
    rm -rf "$parts" "$busy" && mkdir -p "$parts"
    (while sleep 3; do pack 2>/dev/null; done) &
    packing=$!
    trap 'kill $packing 2>/dev/null' EXIT
    running='' each=$(($(left) * 2 / 5))
    for g in ops model swarm memory race; do
        mkdir -p "$parts/$g"
        call $g $each "$busy" &
        running="$running $!"
    done
    py_torch=$(python_with "PyTorch" 240 "$torch")
    warm() { within 100; bounded $limit "$py_torch" tests/gpu/torch_train.py --device $torch_device --seconds 0.1 "$@" >/dev/null 2>&1; }
    if [ -n "$py_torch" ]; then
        warm $xl ${xl_batches% --batch *} --sweep $blocks &
        running="$running $!"
        warm $small --batch 64 --sweep $whole $graphs &
        running="$running $!"
    fi
    wait $running
    for g in train bench why; do call $g "$(left)"; done
    kill $packing && wait $packing 2>/dev/null
    pack
    "$python" tests/gpu/figures.py --records "$parts" --out "$figures/gpu${dry:+-dry-run}.json" ${dry:+--dry-run}
    verdict=$?
    for g in ops model swarm memory race bench train why; do
        grep -qs '^# step ' "$parts/$g/$g"-*.log && continue
        echo "run.sh: $g made no step; what it told:" >&2
        tail -n 8 "$parts/$g/told" >&2
        verdict=1
    done
    exit $verdict
fi

# ---- is it right? ----------------------------------------------------------
if group ops; then
    names=$figures/names
    # shellcheck disable=SC2016
    step "operations against the reference: their names" 60 \
        sh -c '"$1" list >"$2" && test -s "$2"' sh "$gpu/check_ops" "$names" || : >"$names"
    while read -r t <&3; do
        # cuDNN compiles for each shape of attention.
        name="operations against the reference: $t" limit=120
        # Listed where there are several cards: ranks that wait for each other would wait for ever.
        [ "$t" = islands ] && name="two cards: steps, a pipeline, a rank that fails" limit=60
        step "$name" $limit "$gpu/check_ops" "$t"
    done 3<"$names"
    step "operations against the reference: our own attention" 60 env SKERRY_SDPA=own "$gpu/check_ops" attention
    step "operations against the reference: our own convolution" 60 env SKERRY_CONV=own "$gpu/check_ops" frozen_ops
fi

# ---- how fast? -------------------------------------------------------------
if group bench; then
    if [ -n "$dry" ]; then
        skip "operations: bandwidth and arithmetic" "no card"
    else
        step "operations: bandwidth and arithmetic" 150 "$gpu/check_ops" bench
    fi
fi
# shellcheck disable=SC2086
if group train; then
    ours "DiT-XL/2, 256 tokens" 120 $xl $xl_batches
    torchs "DiT-XL/2 in PyTorch" 150 $xl $xl_batches --sweep $blocks
    ours "DiT 384x12, 64 tokens" 60 $small $small_batches
    torchs "DiT 384x12 in PyTorch" 140 $small --batch 64 --sweep $whole $graphs
fi

if group model; then
    py_model=$(python_with "models in PyTorch" 240 "import pytest, torch; print(torch.__version__); $card")
    for t in dit llama; do
        if [ -n "$py_model" ]; then
            step "whole model against PyTorch: $t" 150 "$py_model" -m pytest -q -p no:cacheprovider -k "$cases" \
                "tests/reference/test_$t.py"
        else
            skip "whole model against PyTorch: $t" "no PyTorch with pytest that sees the card"
        fi
    done
fi
if group swarm; then
    py_swarm=$(python_with "the swarm" 60 'import pytest, requests, numpy, PIL')
    if [ -n "$py_swarm" ]; then
        # shellcheck disable=SC2086
        step "a swarm of a card and two CPUs; start to first step" 150 "$py_swarm" tests/gpu/mixed_swarm.py \
            --build "$build" --device $device $toy
    else
        skip "a swarm of a card and two CPUs; start to first step" "no Python with pytest, requests, numpy, Pillow"
    fi
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
    # Of attention our own kernel for Hopper, at the shape that it is for.
    for t in matches_reference batches_do_not_matter; do
        # shellcheck disable=SC2086
        step "compute-sanitizer $1: attention, $t" 60 env SKERRY_SDPA=own $with "$gpu/check_ops" attention:${t}_on_hopper
    done
    # shellcheck disable=SC2086
    step "compute-sanitizer $1: training steps" 60 $with \
        "$tools/train_probe" $device bf16 32 2 2 2 8 0.5 3 "$figures/sanitised.safetensors"
}
group memory && sanitise memcheck
group race && sanitise racecheck
# Minutes of compilation before the first step.
# shellcheck disable=SC2086
group whole && torchs "DiT-XL/2 in PyTorch, compiled whole" 300 $xl --batch "${xl_batches##* }" --sweep $whole

# What other choices would cost, the time of each operation, and of all ways of each product.
# shellcheck disable=SC2086
if [ -n "$only" ] && group why; then
    ours "why: DiT-XL/2, GELUs made twice" 90 $xl $xl_batches --lean
    export SKERRY_SDPA=own
    ours "why: DiT-XL/2, our own attention" 90 $xl --batch 64 --profile 3
    export SKERRY_SDPA=cudnn
    ours "why: DiT-XL/2, attention by cuDNN" 90 $xl $xl_batches
    unset SKERRY_SDPA
    # What was timed before is kept, and would not be told again.
    [ -z "$dry" ] && export SKERRY_TUNE=say XDG_CACHE_HOME="$figures/timed-anew" && rm -rf "$XDG_CACHE_HOME"
    ours "why: DiT-XL/2, each operation" 90 $xl --batch 64 --profile 3
    ours "why: DiT 384x12, each operation" 60 $small --batch 64 --profile 20
    export SKERRY_CUDA_GRAPHS=0
    ours "why: DiT 384x12, no graphs" 60 $small --batch 64
    unset SKERRY_CUDA_GRAPHS
fi

# ---- one table -------------------------------------------------------------
echo
out=$figures/gpu.json
[ -n "$dry" ] && out=$figures/gpu-dry-run.json
"$python" tests/gpu/figures.py --records "$records" --out "$out" ${dry:+--dry-run}
verdict=$?
echo "$(($(date +%s) - begun)) s"
exit $verdict
