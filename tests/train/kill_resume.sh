#!/usr/bin/env bash
# Kills a run that checkpoints every step at random instants, and resumes it each time: every start must find a whole
# checkpoint, and the state at the end must be that of a run nobody disturbed.
#   kill_resume.sh BIN KILLS [STEPS [SETTING...]]   SETTING: KEY=VALUE, as finetune --set takes it
set -euo pipefail
bin=$1 kills=$2 steps=${3:-60}
settings=()
for s in "${@:4}"; do settings+=(--set "$s"); done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../data" && pwd)

cat >"$work/model.yaml" <<EOF
name: small
dim: 64
heads: 2
ffn_dim: 128
layers: 3
text_dim: 32
text_len: 8
freq_dim: 64
codec: haar
text_encoder: hashed-ngram
num_frames: 5
size: 32x32
attention: dsa
dsa: {kernel: [3, 3, 3], reach: [1, 1, 1], mode: full, groups: 2}
EOF
"$bin/shard-weights" --init "$work/model.yaml" -o "$work/model" --seed 1 -q >/dev/null
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/model" --num-frames 5 --size 32x32 -q >/dev/null

configuration() { # configuration OUTPUT SAVE_EVERY
  cat <<EOF
model: {path: $work/model}
data: {cache: $work/cache, batch_size: 1}
train: {max_train_steps: $steps, seed: 7}
optimizer: {learning_rate: 0.001}
stream: {link: {kind: emulated, bandwidth: 200MB/s}}
output: {output_dir: $1, save_every_n_steps: $2, checkpoints_total_limit: 2}
EOF
}
train() { "$bin/finetune" "$1" "${settings[@]}" -q --progress never --threads 2 >"$work/log" 2>&1; }

configuration "$work/whole" 0 >"$work/whole.yaml"
train "$work/whole.yaml"
expected=$("$bin/shard-weights" --hash "$work/whole/latest")

# How long a run takes bounds the instants.
configuration "$work/timed" 1 >"$work/timed.yaml"
begin=$(date +%s%N)
train "$work/timed.yaml"
milliseconds=$((($(date +%s%N) - begin) / 1000000))
[ "$("$bin/shard-weights" --hash "$work/timed/latest")" = "$expected" ] || { echo "checkpoints change the result"; exit 1; }

done_kills=0 round=0
while [ "$done_kills" -lt "$kills" ]; do
  round=$((round + 1))
  out=$work/out$round
  configuration "$out" 1 >"$work/run.yaml"
  while [ "$done_kills" -lt "$kills" ]; do
    "$bin/finetune" "$work/run.yaml" "${settings[@]}" -q --progress never --threads 2 >"$work/log" 2>&1 &
    pid=$!
    instant=$(((RANDOM * 32768 + RANDOM) % (milliseconds / 2 + 1)))
    sleep "$((instant / 1000)).$(printf %03d $((instant % 1000)))"
    kill -9 "$pid" 2>/dev/null && done_kills=$((done_kills + 1))
    wait "$pid" 2>/dev/null && break # it had reached its end
    if grep -q 'error:' "$work/log"; then echo "after $done_kills kills a start failed:"; cat "$work/log"; exit 1; fi
    [ -e "$out/latest" ] || continue
    "$bin/shard-weights" --verify "$out/latest" >"$work/verify" 2>&1 ||
      { echo "kill $done_kills left a damaged checkpoint:"; cat "$work/verify"; exit 1; }
  done
  train "$work/run.yaml" || { cat "$work/log"; exit 1; }
  got=$("$bin/shard-weights" --hash "$out/latest")
  [ "$got" = "$expected" ] || { echo "round $round ended in $got, expected $expected"; exit 1; }
  # Every step has one line, whatever was run twice.
  grep -o '"step":[0-9]*' "$out/metrics.jsonl" | cut -d: -f2 | cmp - <(seq "$steps") || { echo "round $round: metrics.jsonl misses or repeats a step"; exit 1; }
  rm -rf "$out"
done
echo "$done_kills kills in $round rounds: every start found a whole checkpoint, every end the state $expected"
