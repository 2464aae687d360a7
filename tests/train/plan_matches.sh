#!/usr/bin/env bash
# The plan is held to its word: device peak equal to the byte, host memory within 2%, for dense and dsa, asynchronous and
# synchronous, with and without accumulation.
#   plan_matches.sh BIN
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../data" && pwd)
for attention in dense dsa; do "$bin/shard-weights" --init tiny --attention $attention -o "$work/$attention" --seed 1 -q >/dev/null; done
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/dsa" --num-frames 9 --size 64x64 -q >/dev/null

number() { grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2; } # number FIELD: the first one of the text
largest() { grep -o "\"$1\":[0-9]*" "$2" | cut -d: -f2 | sort -n | tail -1; }

failures=0
printf '%-44s %12s %12s %12s %12s %7s\n' run 'device plan' 'device run' 'host plan' 'host run' ratio
for attention in dense dsa; do for async in true false; do for accumulation in 1 3; do
  out=$work/out-$attention-$async-$accumulation
  cat >"$work/run.yaml" <<EOF
model: {path: $work/$attention}
data: {cache: $work/cache, batch_size: 4}
train: {max_train_steps: 3, gradient_accumulation_steps: $accumulation}
stream: {async: $async, link: {kind: emulated, bandwidth: 8GB/s}}
output: {output_dir: $out}
EOF
  plan=$("$bin/plan-memory" --run "$work/run.yaml" --json)
  "$bin/finetune" "$work/run.yaml" -q --progress never >/dev/null
  device_plan=$(grep -o '"peak":[0-9]*' <<<"$plan" | cut -d: -f2) device_run=$(largest device_peak_bytes "$out/metrics.jsonl")
  host_plan=$(number total <<<"$plan") host_run=$(largest host_rss_bytes "$out/metrics.jsonl")
  verdict=$(awk -v p="$host_plan" -v r="$host_run" 'BEGIN{q = p / r; printf "%.3f %d", q, (q > 0.98 && q < 1.02)}')
  printf '%-44s %12d %12d %12d %12d %7s\n' "$attention, async $async, accumulation $accumulation" "$device_plan" "$device_run" \
    "$host_plan" "$host_run" "${verdict% *}"
  [ "$device_plan" = "$device_run" ] && [ "${verdict#* }" = 1 ] || failures=$((failures + 1))
done; done; done
[ $failures -eq 0 ] || { echo "$failures runs were not as planned"; exit 1; }
