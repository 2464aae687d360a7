#!/usr/bin/env bash
# Fails a run on the cuda device at calls of the CUDA runtime spread over the whole run: each time it must end with an error
# that names a call, the checkpoint before must be whole and give the state of an undisturbed run when it is resumed, and
# nothing may be left on the device.
#   faults.sh BUILD COUNT
set -euo pipefail
build=$1 count=$2
bin=$build/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../data" && pwd)

cat >"$work/model.yaml" <<END
name: small
dim: 32
heads: 2
ffn_dim: 64
layers: 2
text_dim: 16
text_len: 4
freq_dim: 32
codec: haar
text_encoder: hashed-ngram
num_frames: 5
size: 16x16
attention: dense
dsa: {kernel: [3, 3, 3], reach: [1, 1, 1], mode: full, groups: 1}
END
"$bin/shard-weights" --init "$work/model.yaml" -o "$work/model" --seed 1 -q >/dev/null
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/model" --num-frames 5 --size 16x16 -q >/dev/null 2>&1
cat >"$work/run.yaml" <<END
model: {path: $work/model}
data: {cache: $work/cache}
train: {max_train_steps: 3, seed: 7}
optimizer: {learning_rate: 0.001}
END
train() { # train OUTPUT [FAULT]
  MEGASLIDE_MOCK_CUDA_FAIL=${2:-0:none} MEGASLIDE_MOCK_CUDA_REPORT=$work/report.json "$build/tests/finetune_mocked" "$work/run.yaml" --device cuda \
    --set output.output_dir="$1" --set output.save_every_n_steps=1 -q --progress never --threads 2 >"$work/log" 2>&1
}
field() { grep -o "\"$1\":[0-9]*" "$work/report.json" | cut -d: -f2; }

train "$work/whole"
expected=$("$bin/shard-weights" --hash "$work/whole/latest")
calls=$(field calls)
done_=0 checkpoints=0 late=0 unlocked=0 i=0
while [ "$done_" -lt "$count" ]; do
  i=$((i + 1))
  kind=$( ((i % 2)) && echo launch || echo out_of_memory)
  call=$((1 + (i * 7919) % calls))
  out=$work/out
  rm -rf "$out"
  status=0
  train "$out" "$call:$kind" || status=$?
  # A run may end well where the call came too late (how many there are varies with how often an event is asked for), and
  # where host memory could not be locked.
  if [ "$status" = 0 ] && [ "$("$bin/shard-weights" --hash "$out/latest")" = "$expected" ]; then
    if [ "$(field calls)" -lt $((call + 16)) ]; then late=$((late + 1)); continue; fi
    if grep -q 'cannot be locked' "$work/log"; then unlocked=$((unlocked + 1)); continue; fi
  fi
  if [ "$status" != 1 ]; then echo "call $call, $kind: exit status $status"; cat "$work/log"; exit 1; fi
  grep -Eq 'error:.*cuda[A-Z]' "$work/log" || { echo "call $call, $kind: the error names no call"; cat "$work/log"; exit 1; }
  [ "$(field live)" = 0 ] || { echo "call $call, $kind: something is left on the device"; cat "$work/report.json"; exit 1; }
  if [ -e "$out/latest" ]; then
    checkpoints=$((checkpoints + 1))
    "$bin/shard-weights" --verify "$out/latest" >"$work/verify" 2>&1 || { echo "call $call, $kind: a damaged checkpoint"; cat "$work/verify"; exit 1; }
  fi
  train "$out" || { echo "after call $call, $kind: cannot be resumed"; cat "$work/log"; exit 1; }
  [ "$("$bin/shard-weights" --hash "$out/latest")" = "$expected" ] || { echo "after call $call, $kind: another state"; exit 1; }
  done_=$((done_ + 1))
done
echo "$done_ failures over $calls calls: each an error that names the call, $checkpoints with a checkpoint before, all resumed to $expected; besides, $late came too late and $unlocked ran on without locked memory"
