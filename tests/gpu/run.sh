#!/bin/sh
# Everything that needs a card, in one go and under 8 minutes; safe to run again.
#
#   tests/gpu/run.sh              build, check, sanitise, measure, print one table
#   tests/gpu/run.sh --no-build   with the program that `make gpu-tests` left in build/
#
# Figures go to build/figures/gpu.json.  Exit 0: every check passed and every bound holds.
set -u
cd "$(dirname "$0")/../.."
build=${BUILD_DIR:-build}
check=$build/release/gpu/check_ops
log=$build/figures/gpu.log
table=$build/figures/gpu.table
mkdir -p "$build/figures"
: >"$log"
: >"$table"
failed=0

# step NAME SECONDS COMMAND...: one line of the table; the output goes to the log.
step() {
    name=$1 limit=$2
    shift 2
    echo "== $name" >>"$log"
    start=$(date +%s)
    if timeout -k 5 "$limit" "$@" >>"$log" 2>&1; then result=ok; else result="FAILED ($?)" failed=1; fi
    printf '%-44s %-12s %4d s\n' "$name" "$result" $(($(date +%s) - start)) | tee -a "$table"
}

command -v nvidia-smi >/dev/null && nvidia-smi -L
if [ "${1:-}" != --no-build ]; then
    step "build" 240 make -j"$(nproc)" CUDA=1 WERROR=1 BUILD_DIR="$build" gpu-tests
fi
[ -x "$check" ] || { echo "run.sh: no $check; see $log" >&2; exit 1; }

for t in adaln elementwise matmul decoder attention; do
    step "$t against the reference" 60 "$check" $t
done
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        step "$tool: adaLN" 60 "$sanitizer" --tool $tool --error-exitcode 9 "$check" adaln
        step "$tool: decoder" 60 "$sanitizer" --tool $tool --error-exitcode 9 "$check" decoder
    done
else
    echo "compute-sanitizer is not installed: not run" | tee -a "$table"
fi
echo "== bench" >>"$log"
timeout -k 5 120 "$check" bench "$build/figures/gpu.json" >"$build/figures/gpu.bench" 2>&1 || failed=1
cat "$build/figures/gpu.bench" >>"$log"

echo
echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(date -u +%Y-%m-%d)"
cat "$table" "$build/figures/gpu.bench"
[ $failed = 0 ] && echo "all checks passed and all bounds hold" || echo "something failed: see $log"
exit $failed
