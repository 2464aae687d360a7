#!/usr/bin/env bash
# Does a run converge alike however its state is kept? All pairs of masters and moments, several seeds, the same batches.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source-path=SCRIPTDIR source=clips.sh
source "$HERE/recipes/clips.sh"

export MOTION_FRAMES=9  # clips.sh reads it
steps=$(either 4 400) every=$(either 2 25)
read -ra seeds <<<"$(either "1 2" "1 2 3")"
read -ra pairs <<<"$(either "fp32:fp32 split:fp32 bf16-sr:int8" "fp32:fp32 fp32:bf16 fp32:int8 split:fp32 split:bf16 split:int8 bf16-sr:fp32 bf16-sr:bf16 bf16-sr:int8")"

for seed in "${seeds[@]}"; do
  [[ -d $WORK/model-$seed ]] || run shard-weights -q --init "$HERE/models/small.yaml" --seed "$seed" -o "$WORK/model-$seed" >/dev/null
done
motion_cache motion "$(either 16 128)" 1 9 "$WORK/model-1"

for pair in "${pairs[@]}"; do
  masters=${pair%:*} moments=${pair#*:}
  sets "optimizer.masters=$masters" "optimizer.moments=$moments"
  plan "state.$masters.$moments" --model megaslide-105b --machine h200-1.5tb --set model.attention=dense --set stream.stash=host --size 832x480 --num-frames 81 "${set_flags[@]}"
  for seed in "${seeds[@]}"; do
    train "run.$masters.$moments.$seed" "$HERE/runs/codecs.yaml" "${set_flags[@]}" --set "model.path=$WORK/model-$seed" --set "data.cache=$WORK/motion/cache-9" \
      --set "train.seed=$seed" --set "train.max_train_steps=$steps" --set "train.validate_every_n_steps=$every"
  done
done

# Differences between runs of equal seed.
for pair in "${pairs[@]}"; do
  id=${pair/:/.}
  [[ $id != fp32.fp32 ]] || continue
  losses=()
  for seed in "${seeds[@]}"; do losses+=("$(value "run.$id.$seed" .held_out_loss)" "$(value "run.fp32.fp32.$seed" .held_out_loss)"); done
  difference_row "difference.$id" "held_out_loss of run.$id.SEED less that of run.fp32.fp32.SEED" "${losses[@]}"
done

finish "Codecs: how the state is kept" <"$HERE/recipes/codecs.jq"
