#!/usr/bin/env bash
# scripts/gpu-check with programs over the mock of the CUDA runtime: says when there is no GPU, stops in time, goes on where it
# stopped, and writes its table.
#   gpu_check.sh BUILD
set -euo pipefail
build=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build/bin" "$work/build/tests" "$work/path" "$work/none"
for p in shard-weights encode-clips; do ln -s "$build/bin/$p" "$work/build/bin/$p"; done
ln -s "$build/lib" "$work/build/lib"
ln -s "$build/tests/finetune_mocked" "$work/build/bin/finetune"
ln -s "$build/tests/plan_memory_mocked" "$work/build/bin/plan-memory"
ln -s "$build/tests/bench_device_mocked" "$work/build/bin/bench_device"
ln -s "$build/tests/test_gpu_mocked" "$work/build/tests/test_gpu"
check() { "$root/scripts/gpu-check" --build "$work/build" --out "$work/out" --tiny "$@" 2>"$work/log"; }
die() { echo "$*"; cat "$work/log" "$work/out/gpu-check.jsonl" "$work"/out/logs/*; exit 1; }

printf '#!/bin/sh\nexit 9\n' >"$work/none/nvidia-smi"
printf '#!/bin/sh\necho "NVIDIA Mock 1, 8192 MiB, 580.00"\n' >"$work/path/nvidia-smi"
chmod +x "$work"/*/nvidia-smi
status=0
PATH=$work/none:$PATH check || status=$?
[ "$status" = 3 ] && grep -q 'no GPU' "$work/log" || { echo "without a GPU: exit status $status"; exit 1; }

export PATH=$work/path:$PATH MEGASLIDE_MOCK_CUDA_SLOW=3000
status=0
check --seconds 1 >/dev/null || status=$?
[ "$status" = 1 ] || die "short of time: exit status $status"
first=$(grep -c '"ok":true' "$work/out/gpu-check.jsonl")
[ "$first" -ge 1 ] && [ "$first" -lt 12 ] || die "$first steps in a second"
kept=$(head -1 "$work/out/gpu-check.jsonl")
check --seconds 500 >"$work/table" || die "exit status $?"
[ "$(grep -c '"ok":true' "$work/out/gpu-check.jsonl")" = 12 ] || die "not all steps passed"
[ "$(head -1 "$work/out/gpu-check.jsonl")" = "$kept" ] || die "a step that was done ran again"
cmp -s "$work/table" "$work/out/gpu-check.md" && grep -q '^# NVIDIA Mock 1' "$work/table" && grep -q 'losses as on the CPU | true' "$work/table" || die "the table: $(cat "$work/table")"
