#!/usr/bin/env bash
# Makes the mistakes that docs/troubleshooting.md speaks of, each with the program that people make it with, and prints what
# the programs say. Usage: provoke.sh BIN-DIR SOURCE-DIR
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../cli/tiny_run.sh"
bin=$(realpath "$1") source=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$bin:$PATH LC_ALL=C
cd "$work" || exit 1
exec 3>&2 2>&1 </dev/null

failures=0
# say STATUS COMMAND...: the command, its status (which has to be this one), and its output.
say() {
  local wanted=$1 status=0
  shift
  echo "\$ $*"
  "$@" || status=$?
  if [[ $status != "$wanted" ]]; then
    echo "provoke.sh: exit $status, expected $wanted: $*" >&3
    failures=$((failures + 1))
  fi
}
quietly() { "$@" >/dev/null 2>&1 || say 0 "$@"; }

tiny_run "$source" || say 0 tiny_run
quietly finetune run.yaml

# Command line and configuration
say 2 finetune run.yaml --resum latest
say 2 finetune run.yaml --set train.sed=1
say 2 finetune run.yaml --set optimizer.learning_rate=abc
say 2 finetune run.yaml --set optimizer.device=device --set stream.tier=nvme
say 2 finetune run.yaml --set stream.slabs=4 --set model.attention=dense
say 2 finetune run.yaml --set model.expert=high
say 2 plan-memory --model wan2.1-1.3b
say 2 plan-memory --model model --machine rtx4090
say 2 plan-memory --model tiny --num-frames 16
say 2 plan-memory --model tiny --size 60x64

# Models and weights
say 2 plan-memory --model models/none
say 2 finetune run.yaml --set model.path=models/none
cp model/layer-000.safetensors one.safetensors
say 1 shard-weights one.safetensors -o x
head -c 1000 model/head.safetensors >cut.safetensors
say 1 shard-weights cut.safetensors -o x
printf '<!DOCTYPE html><html>log in</html>' >page.safetensors
say 1 shard-weights page.safetensors -o x
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 12345\n' 0 >pointer.safetensors
say 1 shard-weights pointer.safetensors -o x
say 1 shard-weights --init tiny -o model
say 2 sample-video tiny --prompt x -o x.mp4
cp -r model damaged
printf '\x01' | dd of=damaged/layer-001.safetensors bs=1 seek=$(($(stat -c %s damaged/layer-001.safetensors) - 100)) conv=notrunc status=none
say 3 shard-weights --verify damaged
rm damaged/layer-002.safetensors
say 1 sample-video damaged --prompt x -o x.mp4
say 1 shard-weights --export wan model -o model --overwrite
say 0 shard-weights --export diffusers model -o exported
cp -r exported infinite
sed -i 's/"num_layers": *4/"num_layers": 5/' exported/config.json
say 1 shard-weights exported -o x
quietly shard-weights --export wan model -o loose.safetensors
say 1 shard-weights loose.safetensors -o x
say 1 shard-weights run.yaml -o x
weights=infinite/diffusion_pytorch_model.safetensors
printf '\xff\xff\xff\xff' | dd of=$weights bs=1 seek=$((($(stat -c %s $weights) - 40000) / 4 * 4)) conv=notrunc status=none
say 0 shard-weights infinite -o not-finite
say 2 sample-video not-finite --prompt x -o x.mp4 --steps 2

# Clips
mkdir bad
for clip in audio blank cut empty huge missing none page pointer words; do echo "a $clip clip" >bad/$clip.txt; done
rm bad/none.txt
cp clips/tree.mp4 bad/none.mp4
cp clips/tree.mp4 bad/blank.mp4
: >bad/blank.txt
cp clips/street.mp4 bad/good.mp4
cp clips/street.txt bad/good.txt
: >bad/empty.mp4
cp page.safetensors bad/page.mp4
cp pointer.safetensors bad/pointer.mp4
head -c 3000 clips/tree.mp4 >bad/cut.mp4
cp "$source/tests/data/fuzz/video/finding-samples-for-gigabytes" bad/huge.mp4
echo 'just some words' >bad/words.mp4
printf 'caf\xe9\n' >bad/good.txt
say 0 encode-clips bad -o bad-cache --model model --size 64x64 --num-frames 9
printf 'video,promt\nclips/tree.mp4,a tree\n' >table.csv
say 2 encode-clips table.csv -o bad-cache --model model
say 1 encode-clips nowhere -o bad-cache --model model
mkdir nothing
say 1 encode-clips nothing -o bad-cache2 --model model
say 2 encode-clips clips -o bad-cache --model model --size 100x100
sed 's/text_dim: 64/text_dim: 32/' "$source/configs/models/tiny.yaml" >narrow.yaml
quietly shard-weights --init narrow.yaml -o narrow
quietly encode-clips clips -o narrow-cache --model narrow --size 64x64 --num-frames 9
say 1 finetune run.yaml --set data.cache=narrow-cache

# Fitting
say 3 plan-memory --run run.yaml --set stream.device_budget=3MB
say 3 finetune run.yaml --set stream.host_budget=1MB --set output.output_dir=run2
say 3 plan-memory --model wan2.1-t2v-14b --machine rtx4090-128gb --num-frames 81 --size 1280x720
say 1 finetune run.yaml --set data.cache=nowhere
say 1 finetune run.yaml --set output.output_dir=/proc/nothing

# Checkpoints and runs
say 2 finetune run.yaml --steps 2 --set train.seed=5
say 0 finetune run.yaml
quietly encode-clips clips bad/good.mp4 -o cache4 --model model --size 64x64 --num-frames 9
say 2 finetune run.yaml --steps 2 --set data.cache=cache4
say 1 finetune run.yaml --steps 2 --resume run/checkpoints/step-00000007
say 2 finetune run.yaml --steps 2 --resume none
cp -r run hurt
printf '\x01' | dd of=hurt/checkpoints/step-00000001/layer-001.safetensors bs=1 seek=70000 conv=notrunc status=none
say 1 finetune run.yaml --steps 2 --set output.output_dir=hurt
mkdir run/checkpoints/step-00000005.tmp
say 0 finetune run.yaml
say 1 flock run/.lock finetune run.yaml --steps 2
say 1 flock cache/.lock encode-clips clips -o cache --model model --size 64x64 --num-frames 9
say 2 finetune run.yaml --set data.validation_fraction=0.9 --set output.output_dir=run3
say 2 finetune run.yaml --set model.fp8_forward=true --set model.compute_dtype=fp32 --set output.output_dir=run3
cp -r cache sick
for latent in sick/clips/*.safetensors; do
  printf '\xff\xff\xff\xff' | dd of="$latent" bs=1 seek=$(($(stat -c %s "$latent") - 12300)) conv=notrunc status=none
done
say 1 finetune run.yaml --set data.cache=sick --set train.stop_after_skipped=1 --set output.output_dir=run3

# Sampling
say 2 sample-video model --prompt x -o x.avi
say 2 sample-video model --prompt x --prompt y -o x.mp4
say 2 sample-video model --prompt x -o x.mp4 --num-frames 8
say 2 sample-video model -o x.mp4
say 2 sample-video model --prompt x -o x.mp4 --device sim

# Scores
quietly sample-video model --prompt "a green tree" -o sample.mp4 --steps 1
say 0 eval-vbench sample.mp4
say 1 eval-vbench sample.mp4 --reference clips/tree.mp4 --dimension psnr
say 2 eval-vbench sample.mp4 --weights nowhere
say 2 eval-vbench sample.mp4 --dimension beauty
say 1 eval-vbench nothing
say 3 eval-vbench sample.mp4 --fail-under temporal_flickering=1.0
exit $((failures > 0))
