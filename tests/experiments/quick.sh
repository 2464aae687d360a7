#!/usr/bin/env bash
# make -C configs/experiments QUICK=1: every target makes its document, the report shows them beside the claims, and a second make
# runs nothing again.
#   quick.sh BIN SOURCE
set -euo pipefail
bin=$1 source=$2
command -v jq >/dev/null || { echo "skipped: no jq here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
complain() { echo "$*"; bad=1; }
make_quick() { env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory -C "$source/configs/experiments" BIN="$bin" OUT="$work/out" QUICK=1 "$@"; }

make_quick >"$work/first.txt" 2>&1 || { tail -30 "$work/first.txt"; exit 1; }
for target in memory throughput codecs precision quality motion; do
  jq -e --arg t "$target" '.target == $t and .quick and (.rows | length > 0) and (.tables | length > 0) and (.date | length == 10) and (.machine | length > 0)' \
    "$work/out/$target.json" >/dev/null || complain "$target.json is not whole"
  jq -e '[.rows[] | .command | length > 0] | all' "$work/out/$target.json" >/dev/null || complain "$target.json: a row without its command"
  # What comes out of the planner is never called measured, nor the other way round.
  jq -e '[.rows[] | select(.command | startswith("plan-memory")) | .kind == "simulated"] | all' "$work/out/$target.json" >/dev/null || complain "$target.json: a plan that is called measured"
  jq -e '[.rows[] | select(.kind == "measured") | .command | startswith("plan-memory") | not] | all' "$work/out/$target.json" >/dev/null || complain "$target.json: a measurement that is a plan"
done
jq -e '.rows[] | select(.id == "tiny-equal") | .values.value == 1' "$work/out/memory.json" >/dev/null || complain "device peaks are not those that were planned"
jq -e '.rows[] | select(.id == "run-speedup") | .values.same_bits' "$work/out/throughput.json" >/dev/null || complain "asynchronous and synchronous runs differ"
jq -e '[.rows[] | select(.id == "difference.split.fp32") | .values.each[] | . == 0] | length > 0 and all' "$work/out/codecs.json" >/dev/null || complain "split masters are not fp32 masters"

for word in '<svg' 'simulated with the planner' 'measured here' 'derived' 'refuted' 'data:image/png;base64' 'make -C configs/experiments'; do
  grep -qF -- "$word" "$work/out/report.html" || complain "report.html has no '$word'"
done
grep -qE '(src|href)="?(https?:|//|file:)' "$work/out/report.html" && complain "report.html needs other files"
grep -q 'not run' "$work/out/claims.md" && complain "claims without a number: $(grep 'not run' "$work/out/claims.md")"
for svg in "$work"/out/plots/*.svg; do grep -q 'no data\|no step\|nan' "$svg" && complain "$svg: $(grep -o 'no data\|no step\|nan' "$svg" | head -1)"; done

make_quick memory throughput codecs precision quality >"$work/second.txt" 2>&1 || { tail -30 "$work/second.txt"; exit 1; }
again=$(find "$work/out" -path '*/rows/*.json' -newer "$work/first.txt" | wc -l)
((again == 0)) || complain "$again rows were made again"

# Rows that went into the tree come back as they were.
mkdir "$work/results"
jq -c '{target}, .rows[]' "$work/out/precision.json" >"$work/results/precision.jsonl"
bash "$source/configs/experiments/recipes/restore.sh" "$work/results" "$work/restored" >"$work/restored.txt" 2>&1 || cat "$work/restored.txt"
diff -r "$work/out/precision/rows" "$work/restored/precision/rows" || complain "rows came back otherwise"

((bad)) || echo "$(jq -s 'map(.rows | length) | add' "$work"/out/*.json) rows, nothing to complain about"
exit "$bad"
