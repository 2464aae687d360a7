#!/usr/bin/env bash
# bf16 against fp32: the same run in each type, with several seeds.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=clips.sh
source "$HERE/recipes/clips.sh"

export MOTION_FRAMES=9  # clips.sh reads it
steps=$(either 4 400) every=$(either 2 25)
read -ra seeds <<<"$(either "1 2" "1 2 3")"
for seed in "${seeds[@]}"; do
  [[ -d $WORK/model-$seed ]] || run shard-weights -q --init "$HERE/models/small.yaml" --dtype fp32 --seed "$seed" -o "$WORK/model-$seed" >/dev/null
done
motion_cache motion "$(either 16 128)" 1 9 "$WORK/model-1"

for kind in fp32 bf16 fp8; do
  case $kind in
    fp32) sets model.compute_dtype=fp32 optimizer.masters=fp32 optimizer.gradients=fp32 ;;
    bf16) sets model.compute_dtype=bf16 optimizer.gradients=bf16 ;;
    fp8) sets model.compute_dtype=bf16 model.fp8_forward=true ;;
  esac
  for seed in "${seeds[@]}"; do
    train "run.$kind.$seed" "$HERE/runs/codecs.yaml" "${set_flags[@]}" --set stream.link.kind=emulated --set "model.path=$WORK/model-$seed" --set "data.cache=$WORK/motion/cache-9" \
      --set "train.seed=$seed" --set "train.max_train_steps=$steps" --set "train.validate_every_n_steps=$every"
  done
done

finish "Precision: bf16 against fp32" <"$HERE/recipes/precision.jq"
