#!/usr/bin/env bash
# A disk that is full in the middle of a checkpoint: the run fails and says so, and the checkpoint before stays whole.
# Needs a small tmpfs, mounted as root or in a user namespace; exits 77 (skipped) where neither may be had.
# Usage: full_disk.sh BIN-DIR SOURCE-DIR
set -uo pipefail
if [[ -z ${FULL_DISK_INSIDE:-} ]]; then
  export FULL_DISK_INSIDE=1
  if unshare -rm true 2>/dev/null; then exec unshare -rm "$0" "$@"; fi
  if ((EUID == 0)) && unshare -m true 2>/dev/null; then exec unshare -m "$0" "$@"; fi
  echo "skipped: no mount namespace may be made here"
  exit 77
fi
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bin=$1 source=$2
export PATH=$bin:$PATH
cd "$temporary" || exit 1
mkdir disk clips
cp "$source"/tests/data/clips/tree.{mp4,txt} clips/
shard-weights --init tiny -o model --seed 1 -q >/dev/null || fail "no model"
encode-clips clips -o cache --model model --size 64x64 --num-frames 5 -q >/dev/null || fail "no cache"
bytes=$(plan-memory --model model --json | grep -oE '"checkpoint": ?[0-9]+' | grep -oE '[0-9]+')
((bytes > 1000000)) || fail "plan-memory does not say how large a checkpoint is"
# Room for one checkpoint and two thirds of another.
mount -t tmpfs -o size=$((bytes * 5 / 3)) tmpfs disk || { echo "skipped: no tmpfs may be mounted here"; exit 77; }

train() {
  run finetune - --set output.output_dir=disk/run --set "train.max_train_steps=$1" --set output.checkpoints_total_limit=2 "${@:2}" <<'YAML'
model: {path: model}
data: {cache: cache}
output: {save_every_n_steps: 1}
YAML
}
train 1
expect 0
whole=$(shard-weights --hash disk/run/checkpoints/step-00000001)
train 2
[[ $status != 0 ]] || fail "a full disk went unnoticed"
expect "$status" err '^finetune: error: '
run shard-weights --verify disk/run/checkpoints/step-00000001
expect 0
[[ $(shard-weights --hash disk/run/checkpoints/step-00000001) == "$whole" ]] || fail "the checkpoint before has changed"
[[ $(ls disk/run/checkpoints) == step-00000001 ]] || fail "left behind: $(ls disk/run/checkpoints)"
# With room again the run goes on from there.
mount -o remount,size=$((bytes * 4)) disk
train 2
expect 0
run shard-weights --verify disk/run/checkpoints/step-00000002
expect 0
umount disk
finish
