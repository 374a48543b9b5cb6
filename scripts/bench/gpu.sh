#!/usr/bin/env bash
# Check and time the GPU kernels in one call of at most 10 minutes; a short table comes last.
#
#   bash scripts/bench/gpu.sh [FOLDER]     FOLDER takes the CSV files (default: scripts/bench/results)
#
# Needs torch, triton, transformers, sentence-transformers and pytest; installs nothing. With pytest-xdist six
# processes compile and check at once.
# BUDGET_S: seconds for everything (default 540). PYTHON: the interpreter (default python3).
# COMMIT: what the rows call this version where there is no git. Exit status: 0 only if every check passed.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-scripts/bench/results}
python=${PYTHON:-python3}
export PYTHONPATH=src PYTHONUNBUFFERED=1
ends=$((SECONDS + ${BUDGET_S:-540}))
"$python" -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "gpu.sh: no CUDA device")' || exit 1

status=0
workers=()
"$python" -c 'import xdist' 2>/dev/null && workers=(-n 6)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
left() { echo $((ends - SECONDS)); }

echo "== kernels against float64"
timeout $(($(left) * 4 / 10)) "$python" -m pytest -m gpu -W default tests/kernels tests/losses/test_gradient_cache.py "${workers[@]}" --durations=5 \
  -p no:cacheprovider || {
  status=1
  echo "| CHECKS FAILED (or ran out of time): the numbers below are of unchecked kernels" >>"$log"
}
echo "== head"
budget=$(($(left) * 55 / 100))
timeout $(($(left) * 7 / 10)) "$python" scripts/bench/bench_splade_head_gpu.py --out "$out" --budget-s "$budget" \
  2>&1 | tee -a "$log" || status=1
echo "== measured beside what the card allows"
"$python" scripts/bench/roofline.py --measured "$out/splade_head_gpu.csv" 2>&1 | tee -a "$log" || status=1
echo "== training step"
budget=$(($(left) * 6 / 10))
timeout "$(left)" "$python" scripts/bench/bench_train_step_gpu.py --out "$out" --budget-s "$budget" \
  2>&1 | tee -a "$log" || status=1

echo "== table ($SECONDS s)"
grep '^|' "$log"
exit $status
