#!/usr/bin/env bash
# A model whose state is larger than the memory that it may use trains with its state on disk, within that memory, as the
# plan said, and ends in the state of a run in memory.
#   disk_tier.sh BIN
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../data" && pwd)
fail() { echo "$*"; exit 1; }
# 28 million parameters: 0.4 GB of state, several times what the program itself needs.
sed -E 's/^(name): .*/\1: deep/; s/^(dim): .*/\1: 288/; s/^(heads): .*/\1: 6/; s/^(ffn_dim): .*/\1: 1152/; s/^(layers): .*/\1: 18/; s/^attention: .*/attention: dense/' \
  "$(dirname "$0")/../../configs/models/tiny.yaml" >"$work/deep.yaml"
"$bin/shard-weights" --init "$work/deep.yaml" -o "$work/model" --seed 1 -q >/dev/null
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/model" --num-frames 5 --size 32x32 -q >/dev/null
cat >"$work/run.yaml" <<EOF
model: {path: $work/model}
data: {cache: $work/cache}
train: {max_train_steps: 2}
output: {output_dir: $work/ram}
EOF
number() { grep -o "\"$1\":[0-9]*" | head -1 | cut -d: -f2; }       # number FIELD: the first one of the text
largest() { grep -o "\"$1\":[0-9]*" "$2" | cut -d: -f2 | sort -n | tail -1; }
state() { grep -o '"state_hash":"[0-9a-f]*"' | cut -d'"' -f4; }

whole=$("$bin/plan-memory" --run "$work/run.yaml" --json)
bytes=$(($(number weights <<<"$whole") + $(number masters <<<"$whole") + $(number moments <<<"$whole") + $(number gradients <<<"$whole")))
disk=(--set stream.tier=nvme --set "output.output_dir=$work/nvme")
plan=$("$bin/plan-memory" --run "$work/run.yaml" --json "${disk[@]}")
# The program is up to 8 MiB larger at another start.
budget=$(($(number total <<<"$plan") + 8388608))
echo "state $bytes bytes, budget $budget bytes"
((2 * bytes >= 3 * budget)) || fail "the state is not 1.5 times the budget"

status=0
refused=$("$bin/finetune" "$work/run.yaml" -q --progress never --set stream.host_budget=$budget 2>&1) || status=$?
[[ $status == 3 ]] && grep -q 'host memory: ' <<<"$refused" || fail "in memory it was not refused: $status $refused"
trained=$("$bin/finetune" "$work/run.yaml" -q --progress never --json "${disk[@]}" --set stream.host_budget=$budget)
expected=$("$bin/finetune" "$work/run.yaml" -q --progress never --json)
[[ $(state <<<"$trained") == "$(state <<<"$expected")" ]] || fail "another state: $trained $expected"
[[ $(ls -A "$work/nvme") != *tier* ]] || fail "the run left its file behind: $(ls -A "$work/nvme")"

run=$(largest host_rss_bytes "$work/nvme/metrics.jsonl") planned=$(number total <<<"$plan")
echo "planned $planned bytes, resident $run bytes"
((run <= budget * 102 / 100)) || fail "more than the budget"
awk -v p="$planned" -v r="$run" 'BEGIN{exit !(p / r > 0.95 && p / r < 1.05)}' || fail "not as planned"
