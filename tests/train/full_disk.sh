#!/usr/bin/env bash
# A disk that fills up during a checkpoint: the run says so and stops, and the previous checkpoint is whole.
#   full_disk.sh BIN      (skipped with status 77 where no small tmpfs can be mounted)
set -euo pipefail
bin=$1
work=$(mktemp -d)
mkdir "$work/disk"
mount -t tmpfs -o size=12m megaslide-test "$work/disk" 2>/dev/null || { echo "no tmpfs can be mounted here: skipped"; rm -rf "$work"; exit 77; }
trap 'umount "$work/disk"; rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../data" && pwd)

"$bin/shard-weights" --init tiny -o "$work/model" --seed 1 -q >/dev/null
"$bin/encode-clips" "$data/clips" -o "$work/cache" --model "$work/model" --num-frames 5 --size 32x32 -q >/dev/null
cat >"$work/run.yaml" <<EOF
model: {path: $work/model}
data: {cache: $work/cache}
train: {max_train_steps: 4}
output: {output_dir: $work/disk/out, save_every_n_steps: 1}
EOF
# A checkpoint of tiny takes 40 MB: the first one is refused before its first byte.
status=0
"$bin/finetune" "$work/run.yaml" -q >"$work/log" 2>&1 || status=$?
cat "$work/log"
[ "$status" -eq 1 ] || { echo "status $status, expected 1"; exit 1; }
grep -q 'remedy' "$work/log"
[ -z "$(ls "$work/disk/out/checkpoints")" ] || { echo "something was left behind"; ls "$work/disk/out/checkpoints"; exit 1; }

# Room for two checkpoints; then other files take it while the run goes on.
mount -o remount,size=100m "$work/disk"
"$bin/finetune" "$work/run.yaml" -q --steps 1 >/dev/null
before=$("$bin/shard-weights" --hash "$work/disk/out/latest")
head -c 40m /dev/zero >"$work/disk/other"
status=0
"$bin/finetune" "$work/run.yaml" -q >"$work/log" 2>&1 || status=$?
cat "$work/log"
[ "$status" -eq 1 ] || { echo "status $status, expected 1"; exit 1; }
[ "$("$bin/shard-weights" --hash "$work/disk/out/latest")" = "$before" ] || { echo "the previous checkpoint changed"; exit 1; }
"$bin/shard-weights" --verify "$work/disk/out/latest"
rm "$work/disk/other"
mount -o remount,size=200m "$work/disk"
"$bin/finetune" "$work/run.yaml" -q >/dev/null
"$bin/shard-weights" --verify "$work/disk/out/latest"
