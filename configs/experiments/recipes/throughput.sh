#!/usr/bin/env bash
# What streaming asynchronously is worth: at the paper's scale, simulated, and over an emulated link, measured. Asynchronous,
# synchronous, and with the optimizer on the device.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

PLANNED=$HERE/runs/throughput-planned.yaml
MACHINE=h200-1.5tb
mode_flags() {
  case $1 in
    async) sets stream.async=true ;;
    sync) sets stream.async=false ;;
    device) sets optimizer.device=device ;;
  esac
}
# Seconds until the loss is known, from a trace: transfers, the layers' updates of the step before and the forward pass.
forward_seconds() {
  jq '[.traceEvents[] | select(.ph == "X")] | (map(select(.cat == "step")) | last | .ts) as $start | (map(select(.name == "velocity_loss" and .ts >= $start)) | first | .ts - $start) / 1e6' "$1"
}
# traced ID ARGUMENT...: a plan with its trace, kept in $WORK/ID.trace.json where TRACE=1.
traced() {
  local trace=$WORK/$1.trace.json status=0
  # A row that was restored has no trace.
  [[ ${TRACE:-0} != 1 || -s $trace ]] || rm -f "$WORK/rows/$1.json"
  begin "$1" plan-memory "${@:2}" --trace "$trace" --json || return 0
  run plan-memory "${@:2}" --trace "$trace" --json -q >"$WORK/answer" || status=$?
  ((status == 0 || status == 3)) || fail "$row_command: exit $status"
  jq --argjson forward "$(forward_seconds "$trace")" 'del(.remedies) | .forward_seconds = $forward' "$WORK/answer" | keep simulated
  [[ ${TRACE:-0} == 1 ]] || rm -f "$trace"
}

# A step of 105 B and 28.7 B parameters.
for model in 105b 28b; do
  for n in $(either 81 "5 81"); do
    for mode in async sync device; do
      mode_flags $mode
      TRACE=1 traced "step.$model.$n.$mode" --model megaslide-$model --machine $MACHINE --run "$PLANNED" "${set_flags[@]}" --size 832x480 --num-frames "$n"
    done
  done
done
# 256 latent frames of 1080p, slab by slab: as the paper counts its step.
plan whole.105b --model megaslide-105b --machine $MACHINE --run "$PLANNED" --set stream.slabs=8 --size 1920x1088 --num-frames 1021
plan shortest.105b --model megaslide-105b --machine $MACHINE --run "$PLANNED" --size 64x64 --num-frames 1

# The forward pass of each size at several lengths.
read -ra lengths <<<"$(either "5 17 33" "1 5 9 17 33 49 65 81 121 161")"
for model in wan2.1-t2v-1.3b wan2.1-t2v-14b megaslide-28b megaslide-33b megaslide-105b; do
  short=${model##*-} short=${short/./_}
  for n in "${lengths[@]}"; do
    for mode in async sync; do
      mode_flags $mode
      traced "forward.$short.$n.$mode" --model "$model" --machine $MACHINE --run "$PLANNED" "${set_flags[@]}" --set model.attention=dsa --size 832x480 --num-frames "$n"
    done
  done
  begin "speedup.$short" make -C "$HERE" throughput "# rows forward.$short.*, pictures: ${lengths[*]}" || continue
  for n in "${lengths[@]}"; do
    jq -n --slurpfile a "$WORK/rows/forward.$short.$n.async.json" --slurpfile s "$WORK/rows/forward.$short.$n.sync.json" --arg model "$model" --argjson n "$n" \
      '{model: $model, pictures: $n, parameters: $a[0].values.parameters, tokens: $a[0].values.tokens, forward: ($s[0].values.forward_seconds / $a[0].values.forward_seconds), step: ($s[0].values.step_seconds / $a[0].values.step_seconds)}'
  done | jq -s 'max_by(.forward)' | keep simulated
done

# What no implementation is faster than.
rate() { awk -v s="^$2:" -v k="^  $3:" '$0 ~ s {on = 1} on && $0 ~ k {gsub(/TFLOP\/s/, "e12"); gsub(/GB\/s/, "e9"); print $2; exit}' "configs/machines/$1.yaml"; }
parameters=$(value step.105b.81.async .parameters)
derive floor.compute "6 * $parameters * 2088960 / $(rate $MACHINE compute peak_16bit)"
derive floor.claimed "6 * $parameters * 2088960 / (0.61 * $(rate $MACHINE compute peak_16bit))"
derive floor.link "2 * $parameters / $(rate $MACHINE link up)"

# Over the emulated link, on this machine.
DATA=$WORK/data
model=$(either tiny "$HERE/models/streamed.yaml")
steps=$(either 4 14)
if [[ ! -e $DATA/made ]]; then
  rm -rf "$DATA"
  mkdir -p "$DATA"
  run shard-weights --init "$model" --seed 1 -o "$DATA/model" -q >/dev/null
  run encode-clips tests/data/clips -o "$DATA/cache" --model "$DATA/model" --num-frames 9 --size 64x64 -q >/dev/null
  touch "$DATA/made"
fi
for mode in async sync device; do
  mode_flags $mode
  trace=$WORK/run.$mode.trace.json
  [[ -s $trace ]] || rm -f "$WORK/rows/run.$mode.json"
  train "run.$mode" "$HERE/runs/throughput.yaml" "${set_flags[@]}" --set "model.path=$DATA/model" --set "data.cache=$DATA/cache" --set "train.max_train_steps=$steps" --trace "$trace"
  begin "run-forward.$mode" make -C "$HERE" throughput "# from the beginning of the last step until velocity_loss in $trace" || continue
  jq -n --argjson forward "$(forward_seconds "$trace")" '{forward_seconds: $forward}' | keep measured
done
async=$WORK/rows/run.async.json sync=$WORK/rows/run.sync.json
if begin run-speedup make -C "$HERE" throughput "# run.sync over run.async" "$(jq -c .values "$async" "$sync" | sha256sum | cut -c1-8)"; then
  jq -n --slurpfile a "$async" --slurpfile s "$sync" --argjson fa "$(value run-forward.async .forward_seconds)" --argjson fs "$(value run-forward.sync .forward_seconds)" \
    '{step: ($s[0].values.step_seconds / $a[0].values.step_seconds), forward: ($fs / $fa), same_bits: ($s[0].values.state_hash == $a[0].values.state_hash)}' | keep measured
fi

finish "Throughput: what asynchronous streaming is worth" <"$HERE/recipes/throughput.jq"
