#!/usr/bin/env bash
# The plan is held to its word: device peak equal to the byte, host memory within 2%, or within the 4 MiB by which programs
# differ where that is more; within 5% for slabs, whose calls wait in the streams' queues by the thousand. For dense and dsa,
# whole clips and slabs, asynchronous and synchronous, with and without accumulation.
#   plan_matches.sh BIN
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../data" && pwd)
for attention in dense dsa; do "$bin/shard-weights" --init tiny --attention $attention -o "$work/$attention" --seed 1 -q >/dev/null; done
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/dsa" --num-frames 9 --size 64x64 -q >/dev/null
# As long as a slab with what it sees beside it: of shorter clips part of the device's memory is never touched.
"$bin/encode-clips" "$data/clips" -o "$work/cache-slabs" --model "$work/dsa" --num-frames 33 --size 64x64 -q >/dev/null

number() { grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2; } # number FIELD: the first one of the text
largest() { grep -o "\"$1\":[0-9]*" "$2" | cut -d: -f2 | sort -n | tail -1; }

failures=0
printf '%-44s %12s %12s %12s %12s %7s\n' run 'device plan' 'device run' 'host plan' 'host run' ratio
for kind in dense dsa slabs; do for async in true false; do for accumulation in 1 3; do
  attention=$kind slabs=off cache=$work/cache batch=4 share=0.02
  [ $kind != slabs ] || attention=dsa slabs=3 cache=$work/cache-slabs batch=1 share=0.05
  out=$work/out-$kind-$async-$accumulation
  cat >"$work/run.yaml" <<EOF
model: {path: $work/$attention}
data: {cache: $cache, batch_size: $batch}
train: {max_train_steps: 3, gradient_accumulation_steps: $accumulation}
stream: {async: $async, slabs: $slabs, link: {kind: emulated, bandwidth: 8GB/s}}
output: {output_dir: $out}
EOF
  plan=$("$bin/plan-memory" --run "$work/run.yaml" --json)
  "$bin/finetune" "$work/run.yaml" -q --progress never >/dev/null
  device_plan=$(grep -o '"peak":[0-9]*' <<<"$plan" | cut -d: -f2) device_run=$(largest device_peak_bytes "$out/metrics.jsonl")
  host_plan=$(number total <<<"$plan") host_run=$(largest host_rss_bytes "$out/metrics.jsonl")
  verdict=$(awk -v p="$host_plan" -v r="$host_run" -v share=$share 'BEGIN{q = p / r; d = p > r ? p - r : r - p; printf "%.3f %d", q, (d <= share * r || d <= 4194304)}')
  printf '%-44s %12d %12d %12d %12d %7s\n' "$kind, async $async, accumulation $accumulation" "$device_plan" "$device_run" \
    "$host_plan" "$host_run" "${verdict% *}"
  [ "$device_plan" = "$device_run" ] && [ "${verdict#* }" = 1 ] || failures=$((failures + 1))
done; done; done
[ $failures -eq 0 ] || { echo "$failures runs were not as planned"; exit 1; }
