#!/usr/bin/env bash
# A run with its layers' state on disk, few tokens a step so that the disk is what it waits for: how busy the disk's stream
# is, what it moves a second while busy, and what the same disk gives alone (bench_block_file), before and after.
#   tier.sh BIN [DIRECTORY [LAYERS [STEPS]]]: LAYERS of 17 million parameters, 0.24 GB of state each
set -euo pipefail
bin=$1 place=${2:-.} layers=${3:-12} steps=${4:-4}
work=$(mktemp -d -p "$place")
trap 'rm -rf "$work"' EXIT
root=$(cd "$(dirname "$0")/.." && pwd)
sed -E "s/^(name): .*/\1: tier/; s/^(dim): .*/\1: 1024/; s/^(heads): .*/\1: 8/; s/^(ffn_dim): .*/\1: 4096/; s/^(layers): .*/\1: $layers/; s/^attention: .*/attention: dense/" \
  "$root/configs/models/tiny.yaml" >"$work/model.yaml"
"$bin/shard-weights" --init "$work/model.yaml" -o "$work/model" --seed 1 -q >/dev/null
"$bin/encode-clips" "$root/tests/data/clips" -o "$work/cache" --model "$work/model" --num-frames 5 --size 32x32 -q >/dev/null
cat >"$work/run.yaml" <<EOF
model: {path: $work/model}
data: {cache: $work/cache}
train: {max_train_steps: $steps}
stream: {tier: nvme}
output: {output_dir: $work/out}
EOF
tier=$("$bin/plan-memory" --run "$work/run.yaml" --json | grep -o '"tier":[0-9]*' | cut -d: -f2)
disk() { "$bin/bench_block_file" "$work" --bytes 1000000000 --rounds 1; }
disk
"$bin/finetune" "$work/run.yaml" -q --progress never --json --trace "$work/trace.json" >"$work/summary.json"
disk
# Of 14 bytes a parameter a step reads all under the forward, and in the backward the weights, 2, of all layers but the last
# two; it writes 12 and 2. The first forward reads weights alone, and the last update is read after the last step.
jq -r --argjson tier "$tier" --argjson layers "$layers" --argjson steps "$steps" '
  [.traceEvents[] | select(.cat == "disk")] as $disk
  | ($disk | map(select(.name == "read state") | .dur) | add / 1e6) as $reading
  | ($disk | map(select(.name == "write state") | .dur) | add / 1e6) as $writing
  | ($disk | map(.ts) | min / 1e6) as $first | ($disk | map(.ts + .dur) | max / 1e6) as $last
  | ($tier * $steps * (1 + 2 / 14 * ($layers - 2) / $layers) + $tier * 2 / 14) as $read
  | ($tier * $steps) as $written
  | "state on disk           \($tier / 1e9) GB",
    "reads                   \($read / $reading / 1e9) GB/s while busy",
    "writes                  \($written / $writing / 1e9) GB/s while busy",
    "disk stream busy        \(100 * ($reading + $writing) / ($last - $first)) %",
    "state moved             \(($read + $written) / ($last - $first) / 1e9) GB/s over the run"' "$work/trace.json"
