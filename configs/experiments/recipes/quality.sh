#!/usr/bin/env bash
# One small model, pretrained with dense attention, adapted with each kind of attention: to clips of structured motion and to
# real ones, at a length that the device holds with dense attention and at four times that length.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=clips.sh
source "$HERE/recipes/clips.sh"

short=$(either 5 9) long=$(either 29 45)
export MOTION_FRAMES=$long  # clips.sh reads it
read -ra seeds <<<"$(either "1" "1 2 3")"
pretraining=$(either 4 600) steps=$(either 4 400) every=$(either 2 40)
prompts=$(either 2 4) solver_steps=$(either 3 20)
variants="dense window dsa-zero dsa dsa-motion"
MODEL=$HERE/models/small.yaml

flags_of() { # flags_of VARIANT LENGTH: fills `set_flags`
  case $1 in
    dense | window) sets "model.attention=$1" ;;
    dsa-zero) sets model.attention=dsa "model.dsa.reach=[0, 0, 0]" ;;
    dsa) sets model.attention=dsa ;;
    dsa-motion) sets model.attention=dsa model.dsa.offsets=net+motion model.dsa.motion_share=0.5 ;;
  esac
  [[ $1 == dense || $2 == "$short" ]] || set_flags+=(--set stream.slabs=4)
}

# The models before they are adapted, one a seed, pretrained on other clips of the same kind of motion.
for seed in "${seeds[@]}"; do
  [[ -d $WORK/initial-$seed ]] || run shard-weights -q --init "$MODEL" --seed "$seed" -o "$WORK/initial-$seed" >/dev/null
done
motion_cache pretraining "$(either 12 192)" 7 "$short" "$WORK/initial-1"
for seed in "${seeds[@]}"; do
  # A row that was restored has no model.
  [[ -d $WORK/runs/base.$seed/latest ]] || rm -f "$WORK/rows/base.$seed.json"
  KEEP=1 train "base.$seed" "$HERE/runs/quality.yaml" --set model.attention=dense --set "model.path=$WORK/initial-$seed" --set "data.cache=$WORK/pretraining/cache-$short" \
    --set "train.seed=$seed" --set "train.max_train_steps=$pretraining" --set "train.validate_every_n_steps=$every"
done

# The clips: of structured motion from their maker, real ones from CLIPS, from packages, or, in the quick form, from the tree.
# Clips of both lengths begin alike.
read -ra datasets <<<"${DATA:-motion real}"
motion_clips() {
  local n
  for n in "$short" "$long"; do motion_cache motion "$(either 12 128)" 1 "$n" "$WORK/initial-1"; done
  find "$WORK/motion/clips" -name '*.txt' | LC_ALL=C sort | head -n "$prompts" | xargs cat >"$WORK/motion/prompts.txt"
}
real_clips() {
  local clips=${CLIPS:-} n
  if [[ -z $clips ]]; then
    clips=$(either tests/data/clips "$WORK/real-clips")
    quick || [[ -e $clips/.fetched ]] || bash "$HERE/recipes/fetch_clips.sh" "$clips"
  fi
  mkdir -p "$WORK/real"
  for n in "$short" "$long"; do
    [[ ! -e $WORK/real/made-$n ]] || continue
    run encode-clips -q "$clips" -o "$WORK/real/cache-$n" --model "$WORK/initial-1" --num-frames "$n" --size 64x64 --threads 1 \
      --pictures "$WORK/real/pictures-$n" --json >"$WORK/real/encoded-$n.json"
    touch "$WORK/real/made-$n"
  done
  [[ $(jq '[.clips[] | select(.frames_used == '"$long"')] | length' "$WORK/real/encoded-$long.json") -ge 4 ]] ||
    fail "$clips has fewer than 4 clips of $long pictures"
  jq -r '[.clips[] | select(.status != "dropped") | .caption] | unique | .[]' "$WORK/real/encoded-$long.json" | awk -v n="$prompts" 'NR <= n' >"$WORK/real/prompts.txt"
}
for data in "${datasets[@]}"; do
  case $data in
    motion) motion_clips ;;
    real) real_clips ;;
    *) fail "DATA=$data: motion and real are known" ;;
  esac
done

# score ID PATH [COMMAND...]: what eval-vbench says of a folder of videos, which the command makes. Dimensions whose networks are not
# there are withheld.
score() {
  local flags=()
  [[ -z ${WEIGHTS:-} ]] || flags=(--weights "$WEIGHTS")
  begin "$1" eval-vbench "$2" "${flags[@]}" --json || return 0
  "${@:3}"
  run eval-vbench "$2" "${flags[@]}" --json -q >"$WORK/answer"
  jq '{videos: ([.dimensions[].n] | max), dimensions: (.dimensions | map_values(.raw)), withheld}' "$WORK/answer" | keep measured
}
sample() { # sample ID MODEL DATA LENGTH: videos of the first prompts
  local folder=$WORK/samples/$1
  [[ -d $2 ]] || fail "$2 is gone: remove its row in $WORK/rows, and make it again"
  rm -rf "$folder"
  mkdir -p "$folder" "$WORK/sheets"
  run sample-video "$2" --prompts "$WORK/$3/prompts.txt" -o "$folder/videos" --num-frames "$4" --size 64x64 --steps "$solver_steps" --seed 1 -q \
    --contact-sheet "$WORK/sheets/$1.png" >/dev/null
}
sampled() { # the same, and their scores; again when the model was trained again
  local scores=$WORK/rows/score.$1.json
  [[ ! $WORK/rows/$(basename "$(dirname "$2")").json -nt $scores ]] || rm -f "$scores"
  score "score.$1" "$WORK/samples/$1/videos" sample "$@"
}

for data in "${datasets[@]}"; do
  for n in "$short" "$long"; do
    score "score.$data.$n.clips" "$WORK/$data/pictures-$n"
    for variant in $variants; do
      flags_of "$variant" "$n"
      plan "plan.$data.$n.$variant" --model "$MODEL" --run "$HERE/runs/quality.yaml" "${set_flags[@]}" --num-frames "$n" --size 64x64
      for seed in "${seeds[@]}"; do
        id=$data.$n.$variant.$seed
        if [[ $variant == dense && $n == "$long" ]]; then
          # It cannot be trained at this length: what it learnt of the short clips is sampled longer.
          sampled "$id" "$WORK/runs/run.$data.$short.dense.$seed/latest" "$data" "$n"
          continue
        fi
        KEEP=1 train "run.$id" "$HERE/runs/quality.yaml" "${set_flags[@]}" --set "model.path=$WORK/runs/base.$seed/latest" --set "data.cache=$WORK/$data/cache-$n" \
          --set "train.seed=$seed" --set "train.max_train_steps=$steps" --set "train.validate_every_n_steps=$every"
        sampled "$id" "$WORK/runs/run.$id/latest" "$data" "$n"
      done
    done
  done
done

difference() { # difference DATA LENGTH VARIANT BASE
  local seed pairs=()
  for seed in "${seeds[@]}"; do pairs+=("$(value "run.$1.$2.$3.$seed" .held_out_loss)" "$(value "run.$1.$2.$4.$seed" .held_out_loss)"); done
  difference_row "difference.$1.$([[ $2 == "$short" ]] && echo short || echo long).$3.$4" "held_out_loss of run.$1.$2.$3.SEED less that of run.$1.$2.$4.SEED" "${pairs[@]}"
}
for data in "${datasets[@]}"; do
  for n in "$short" "$long"; do
    for variant in dsa dsa-motion window; do difference "$data" "$n" $variant dsa-zero; done
  done
  for variant in window dsa-zero dsa dsa-motion; do difference "$data" "$short" $variant dense; done
done

finish "Quality: one model adapted with each kind of attention" <"$HERE/recipes/quality.jq"
