# shellcheck shell=bash
# Helpers of the fault tests. A run of milliseconds to disturb: `prepare` makes model, cache and an undisturbed run that keeps
# all checkpoints; `restart_at` gives a copy of it as it was after an earlier step.
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
work=$(cd "$temporary" && pwd -P)
out=$work/out
steps=4

prepare() { # prepare BIN SOURCE SHIM
  bin=$1 source=$2 shim=$3
  machine=$source/configs/machines/laptop-2core.yaml
  cat >"$work/model.yaml" <<YAML
name: small
dim: 32
heads: 1
ffn_dim: 64
layers: 1
text_dim: 32
text_len: 8
freq_dim: 32
codec: haar
text_encoder: hashed-ngram
num_frames: 5
size: 32x32
attention: dsa
dsa: {kernel: [3, 3, 3], reach: [1, 1, 1], mode: full, groups: 1}
YAML
  mkdir "$work/clips"
  cp "$source"/tests/data/clips/tree.{mp4,txt} "$source"/tests/data/clips/street.{mp4,txt} "$work/clips/"
  "$bin/shard-weights" --init "$work/model.yaml" -o "$work/model" --seed 1 -q >/dev/null || { echo "no model"; exit 1; }
  "$bin/encode-clips" "$work/clips" -o "$work/cache" --model "$work/model" --num-frames 5 --size 32x32 -q >/dev/null 2>&1 || { echo "no cache"; exit 1; }
  train "$work/whole" stop --set output.checkpoints_total_limit=100
  [[ $status == 0 ]] || { echo "no undisturbed run: $stderr"; exit 1; }
  expected=$(hash_in "$stdout")
}

# train OUTPUT ON_CHECKPOINT_ERROR [ARGUMENT...]: sets status, stdout, stderr. One thread: calls come in one order.
train() {
  disturbed "$bin/finetune" - -q --progress never --threads 1 --machine "$machine" --json --set "output.output_dir=$1" --set "output.on_checkpoint_error=$2" "${@:3}" <<YAML
model: {path: $work/model}
data: {cache: $work/cache, batch_size: 1}
train: {max_train_steps: $steps, seed: 7}
optimizer: {learning_rate: 0.001}
output: {save_every_n_steps: 1, checkpoints_total_limit: 2}
YAML
}

# disturbed COMMAND...: runs it under the faults in force; sets status, stdout, stderr. The shell's own word of a killed
# child is not heard.
faults=(LC_ALL=C)
disturbed() {
  status=0
  { env "${faults[@]}" "$@" >"$work/stdout" 2>"$work/stderr" || status=$?; } 2>/dev/null
  stdout=$(<"$work/stdout") stderr=$(<"$work/stderr")
}

# with_fault FOLDER NUMBER ACTION [VARIABLE=VALUE...]: what `disturbed` runs under.
with_fault() {
  faults=(LC_ALL=C "LD_PRELOAD=$shim" "FAULT_FOLDER=$1" "FAULT_AT=$2" "${@:4}")
  case $3 in
    full) faults+=(FAULT_ACTION=ENOSPC FAULT_ONWARDS=1) ;;
    gone) faults+=(FAULT_ACTION=EIO FAULT_ONWARDS=1) ;;
    *) faults+=("FAULT_ACTION=$3") ;;
  esac
}
without_fault() { faults=(LC_ALL=C); }

reason_of() { # the words for an action that is an error
  case $1 in
    ENOSPC | full) echo 'No space left on device' ;;
    EIO | gone) echo 'Input/output error' ;;
    EDQUOT) echo 'Disk quota exceeded' ;;
  esac
}

hash_in() { grep -o '"state_hash":"[0-9a-f]*"' <<<"$1" | cut -d'"' -f4; }

# restart_at STEP: $out as the undisturbed run had it when STEP, the newest of two, was written.
restart_at() {
  rm -rf "$out"
  mkdir -p "$out/checkpoints"
  cp -r "$work/whole/checkpoints/step-0000000$1" "$work/whole/checkpoints/step-0000000$(($1 - 1))" "$out/checkpoints/"
  ln -s "checkpoints/step-0000000$1" "$out/latest"
  head -"$1" "$work/whole/metrics.jsonl" >"$out/metrics.jsonl"
}

# record_calls [VARIABLE=VALUE...]: the calls of an undisturbed run that goes on from step 2, in $work/calls.
record_calls() {
  restart_at 2
  with_fault "$out" 0 kill "FAULT_LOG=$work/calls" "$@"
  train "$out" stop
  [[ $status == 0 ]] || { echo "the undisturbed continuation: $stderr"; exit 1; }
}

# check_checkpoints WHAT: whatever looks like a checkpoint is one, byte for byte; the two that were there or later ones are.
check_checkpoints() {
  local path name whole=0
  for path in "$out"/checkpoints/step-*; do
    name=$(basename "$path")
    [[ $name != *.tmp && -e $path/manifest.json ]] || continue
    if diff -r "$path" "$work/whole/checkpoints/$name" >"$work/differences" 2>&1; then whole=$((whole + 1)); else fail "$1: $name is damaged: $(head -3 "$work/differences")"; fi
  done
  ((whole >= 2)) || fail "$1: $whole whole checkpoints are left"
  [[ -e $out/latest/manifest.json ]] || fail "$1: latest leads nowhere"
  [[ $(basename "$(readlink "$out/latest")") > step-00000001 ]] || fail "$1: latest went back"
}

# check_resumed WHAT: going on ends in the state and with the files of the undisturbed run. A checkpoint that could not be
# written when the run went on all the same is missing.
check_resumed() {
  without_fault
  local done=0
  [[ $(readlink "$out/latest") == checkpoints/step-00000004 ]] && done=1
  train "$out" stop
  [[ $status == 0 ]] || { fail "$1: going on failed with $status: $stderr"; return; }
  [[ $(hash_in "$stdout") == "$expected" ]] || fail "$1: going on ended in another state"
  local files before=step-00000003
  [[ $1 == *continue && ! -e $out/checkpoints/step-00000003 ]] && before=step-00000002
  files=$(cd "$out" && find . | grep -v '/step-.*/' | sort | tr '\n' ' ')
  # An old checkpoint that was not removed goes when the next one is written. A run that is done writes none.
  ((done)) && files=$(sed -E 's| ./checkpoints/step-[0-9]+( ./checkpoints/step-[0-9]+ ./checkpoints/step-)|\1|' <<<"$files")
  [[ ${files% } == ". ./.lock ./checkpoints ./checkpoints/$before ./checkpoints/step-00000004 ./latest ./loss.svg ./metrics.jsonl" ]] || fail "$1: left behind: $files"
  [[ $(readlink "$out/latest") == checkpoints/step-00000004 ]] || fail "$1: latest is $(readlink "$out/latest")"
  diff -r "$out/checkpoints/step-00000004" "$work/whole/checkpoints/step-00000004" >/dev/null || fail "$1: the last checkpoint differs"
  [[ $(grep -o '"step":[0-9]*' "$out/metrics.jsonl" | cut -d: -f2 | tr '\n' ' ') == "1 2 3 4 " ]] || fail "$1: metrics.jsonl misses or repeats a step"
}
