#!/usr/bin/env bash
# Device memory against the length of the clips: planned for three machines at 1080p, and measured to the byte for the tiny
# model. What the host holds of 105 B parameters.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

RUN=$HERE/runs/memory.yaml
read -ra lengths <<<"$(either "16 64" "16 32 64 96 128 192 256")"
variants="dense-materialised dense window dsa window-slabs dsa-slabs"
fleet="h200-1.5tb:megaslide-105b h100nvl-94gb:megaslide-33b rtx4090-128gb:wan2.1-t2v-1.3b"

# Latent frames are what the paper counts: it has no compression in time. A codec makes T of 4 (T - 1) + 1 pictures.
pictures() { echo $((4 * ($1 - 1) + 1)); }
flags_of() { # flags_of VARIANT: fills `set_flags`
  case $1 in
    *-slabs) sets "model.attention=${1%-slabs}" stream.slabs=8 ;;
    *) sets "model.attention=$1" ;;
  esac
}
device_memory() { awk '/^compute:/ {c = 1} c && /memory:/ {gsub(/GB/, "e9"); printf "%.0f\n", $2; exit}' "$HERE/../machines/$1.yaml"; }

# The same machine with all the memory one could want: what is planned there is the same and always fits, so that no time is
# spent on remedies while the longest clip is looked for.
boundless() {
  local file=$WORK/boundless-$1.yaml
  sed -E 's/^(name:) .*/\1 boundless/; s/^(  memory:) .*/\1 4000000GB/' "$HERE/../machines/$1.yaml" >"$file"
  echo "$file"
}
# longest ID MODEL MACHINE VARIANT: the most latent frames beside the device's memory, of up to the paper's 256.
longest() {
  local id=$1 model=$2 name=$3 most=0 least=257 middle=256 peak room file arguments
  flags_of "$4"
  arguments=(--run "$RUN" "${set_flags[@]}" --size 1920x1088)
  begin "$id" plan-memory --model "$model" --machine "$name" "${arguments[@]}" --num-frames N --json "# the largest N that fits" || return 0
  file=$(boundless "$name") room=$(device_memory "$name")
  while ((least - most > 1)); do
    peak=$(run plan-memory --model "$model" --machine "$file" "${arguments[@]}" --num-frames "$(pictures $middle)" --json -q | jq .device.peak)
    if ((peak <= room)); then most=$middle; else least=$middle; fi
    middle=$(((least + most) / 2))
  done
  jq -n --arg model "$model" --arg machine "$name" --arg variant "$4" --argjson frames "$most" \
    '{model: $model, machine: $machine, variant: $variant, latent_frames: $frames, at_least: ($frames == 256)}' | keep simulated
}

for entry in $fleet; do
  name=${entry%%:*} model=${entry##*:} short=${name%%-*}
  for variant in $variants; do
    flags_of "$variant"
    for t in "${lengths[@]}"; do
      plan "grid.$short.$variant.$t" --model "$model" --machine "$name" --run "$RUN" "${set_flags[@]}" --size 1920x1088 --num-frames "$(pictures "$t")"
    done
    if quick && [[ $name != h200* ]]; then continue; fi
    longest "longest.$short.$variant" "$model" "$name" "$variant"
  done
  begin "machine.$short" sed -n "'/^compute:/,/memory:/p'" "configs/machines/$name.yaml" || continue
  jq -n --arg model "$model" --arg machine "$name" --argjson memory "$(device_memory "$name")" '{model: $model, machine: $machine, device_memory: $memory}' | keep simulated
done

if quick; then
  for variant in dsa dsa-slabs; do
    flags_of $variant
    plan "grid.h200.$variant.256" --model megaslide-105b --machine h200-1.5tb --run "$RUN" "${set_flags[@]}" --size 1920x1088 --num-frames 1021
  done
fi

# The host's ledger of 105 B parameters. Without offset nets it is the paper's count.
ledger() { # ledger NAME KEY=VALUE...
  sets "${@:2}"
  plan "ledger.$1" --model megaslide-105b --machine h200-1.5tb --run "$RUN" "${set_flags[@]}" --size 832x480 --num-frames 81
}
ledger dense model.attention=dense
ledger dsa model.attention=dsa
ledger fp32-masters model.attention=dense optimizer.masters=fp32
ledger layer model.attention=dense train.clip=layer
ledger int8 model.attention=dense optimizer.moments=int8
ledger smallest model.attention=dense optimizer.moments=int8 optimizer.masters=bf16-sr train.clip=layer
plan small.33b --model megaslide-33b --machine h100nvl-94gb --run "$RUN" --size 832x480 --num-frames 81
plan slabs.recompute --model megaslide-105b --machine h200-1.5tb --run "$RUN" --set stream.slabs=8 --set stream.stash=recompute --size 1920x1088 --num-frames 1021
plan slabs.spared --model megaslide-105b --machine h200-1.5tb --run "$RUN" --set stream.slabs=8 --set stream.stash=recompute \
  --set optimizer.moments=int8 --set train.clip=layer --size 1920x1088 --num-frames 1021
derive tokens "256 * (1088 / 16) * (1920 / 16)"
derive state "14 * $(value ledger.dense .parameters)"

# The tiny model, measured.
TINY=$WORK/tiny
frames=(9 33)
quick || frames=(9 17 33 65 129)
if [[ ! -e $TINY/made ]]; then
  rm -rf "$TINY"
  mkdir -p "$TINY"
  run shard-weights --init tiny --seed 1 -o "$TINY/model" -q >/dev/null
  run make-motion-clips -o "$TINY/clips" --count 1 --num-frames 129 --size 64x64 --seed 1 -q >/dev/null
  touch "$TINY/made"
fi
for n in "${frames[@]}"; do
  run encode-clips "$TINY/clips/clips" -o "$TINY/cache-$n" --model "$TINY/model" --num-frames "$n" --size 64x64 -q >/dev/null
  for variant in $variants; do
    case $variant in *-slabs) sets "model.attention=${variant%-slabs}" stream.slabs=2 ;; *) sets "model.attention=$variant" ;; esac
    arguments=("${set_flags[@]}" --set "model.path=$TINY/model" --set "data.cache=$TINY/cache-$n")
    plan "tiny-plan.$variant.$n" --run "$HERE/runs/memory-tiny.yaml" "${arguments[@]}"
    train "tiny.$variant.$n" "$HERE/runs/memory-tiny.yaml" "${arguments[@]}"
  done
done

pairs() { for n in "${frames[@]}"; do for variant in $variants; do echo "$variant.$n"; done; done; }
if begin tiny-equal make -C "$HERE" memory "# rows tiny.* beside tiny-plan.*, pictures: ${frames[*]}"; then
  for pair in $(pairs); do echo "$(value "tiny.$pair" .device_peak_bytes) $(value "tiny-plan.$pair" .device.peak)"; done |
    jq -Rn '[inputs | split(" ") | .[0] == .[1]] | {value: ((map(select(.)) | length) / length), runs: length}' | keep measured
fi

finish "Memory: what the device and the host hold" <"$HERE/recipes/memory.jq"
