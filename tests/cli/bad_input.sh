#!/usr/bin/env bash
# What people get wrong, with every program: exit status, stream, message and what helps. Usage: bad_input.sh BIN-DIR SOURCE-DIR
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/tiny_run.sh"
bin=$1 source=$2
export PATH=$bin:$PATH
mkdir "$temporary/work"
cd "$temporary/work" || exit 1

tiny_run "$source" || fail "no model or cache"

# Configurations: position, key, what was expected; all at once
printf 'model: {path: model}\ndata: {cache: cache}\ntrain:\n  sed: 1\noutput: {output_dir: run}\n' >bad.yaml
run finetune bad.yaml
expect 2 out '' err '^finetune: error: bad\.yaml:4:3: train\.sed: unknown key; did you mean train\.seed\?$'
run finetune run.yaml --set optimizer.learning_rate=abc
expect 2 out '' err '^finetune: error: --set optimizer\.learning_rate=abc: optimizer\.learning_rate: expected a number > 0 and <= 10, got "abc"$'
printf 'data: {batch_size: 0}\n' >bad.yaml
run plan-memory --model model --run bad.yaml
expect 2 out '' err '^plan-memory: error: bad\.yaml:1:20: data\.batch_size: expected an integer from 1 to 65535, got "0"$'
printf 'train: {seed: x}\noptimizer: {betas: [0.9]}\nstraem: {async: true}\n' >bad.yaml
run finetune bad.yaml
expect 2 out '' err '^finetune: error: 3 errors in the configuration$' err '^bad\.yaml:1:15: train\.seed' err '^bad\.yaml:2:20: optimizer\.betas' \
  err '^bad\.yaml:3:1: straem: unknown key; did you mean stream\?$' err 'remedy: man megaslide-config'
run finetune run.yaml --set optimizer.device=device --set stream.tier=nvme --set optimizer.masters=bf16-sr --set model.compute_dtype=fp32
expect 2 out '' err 'optimizer\.device: device with stream\.tier: nvme is not supported by this version; supported: cpu with either' err 'optimizer\.masters: bf16-sr with model\.compute_dtype: fp32'
run finetune
expect 2 out ''
run finetune no-such.yaml
expect 2 out '' err 'open no-such\.yaml: No such file or directory'
run finetune run.yaml --set model.path=nowhere
[[ $status == 1 || $status == 2 ]] || fail "$shown: exit $status"
expect "$status" out '' err '^finetune: error: .*nowhere'
# A name that came with someone's archive does not drive the terminal
hostile=$'\e[2Jclips'
mkdir "$hostile"
run finetune "$hostile/run.yaml"
expect 2 out '' err '^finetune: error: open \\u001b\[2Jclips/run\.yaml: No such file'
run eval-vbench "$hostile"
expect 1 out '' err '\\u001b\[2Jclips'
printf 'data: {cache: cache}\n' >bad.yaml
run finetune bad.yaml
expect 2 err 'model\.path: the model directory to train' err 'output\.output_dir'

# Models and weights
run shard-weights --init tinny -o x
expect 2 out '' err '^shard-weights: error: tinny: no such model preset or file; did you mean tiny\?$' err 'remedy: .*wan2\.1-t2v-14b'
[[ ! -e x ]] || fail "$shown left something behind"
head -c 1000 model/head.safetensors >truncated.safetensors
run shard-weights truncated.safetensors -o x
expect 1 out '' err '^shard-weights: error: .*truncated\.safetensors'
run shard-weights run.yaml -o x
[[ $status == 1 || $status == 2 ]] || fail "$shown: exit $status"
expect "$status" out '' err 'run\.yaml'
cp -r model damaged
printf '\x01' | dd of=damaged/layer-001.safetensors bs=1 seek=$(($(stat -c %s damaged/layer-001.safetensors) - 100)) conv=notrunc status=none
run shard-weights --verify model
expect 0 err ''
run shard-weights --verify damaged
expect 3 out 'layer-001\.safetensors'
rm damaged/layer-002.safetensors
run sample-video damaged --prompt x -o x.mp4
expect 1 out '' err '^sample-video: error: .*layer-002\.safetensors'
run sample-video run.yaml --prompt x -o x.mp4
[[ $status == 1 || $status == 2 ]] || fail "$shown: exit $status"
expect "$status" out '' err 'run\.yaml'

# Clips and prompts
cp clips/tree.txt clips/words.mp4
printf 'a text\n' >clips/words.txt
run encode-clips clips -o cache2 --model model --size 64x64 --num-frames 9
expect 0 out 'words\.mp4' out 'not a video'
rm clips/words.*
run encode-clips no-such-folder -o cache2 --model model
expect 1 out '' err '^encode-clips: error: .*no-such-folder'
run encode-clips clips -o cache2 --model model --num-frames 16x
expect 2 out '' err 'num-frames'
run sample-video model --prompts no-such.txt -o x
expect 1 out '' err '^sample-video: error: open no-such\.txt: No such file or directory$'
run sample-video model -o x.mp4
expect 2 out ''
run sample-video model --prompt x -o x.mp4 --num-frames 8
expect 2 out '' err '8'
run sample-video model --prompt x -o x.mp4 --size 60x64
expect 2 out '' err '60'
run sample-video model --prompt x -o x.avi
expect 2 out '' err 'avi'
run eval-vbench no-such-folder
expect 1 err 'no-such-folder'
run eval-vbench clips --dimension beauty
expect 2 out '' err 'beauty'
run eval-vbench clips --fail-under psnr=x
expect 2 out '' err 'psnr=x'
run bench-dsa --grid 5x8
expect 2 out '' err 'frames, height and width such as 5x30x52'
run bench-dsa --check no-such.safetensors
expect 1 out '' err 'no-such\.'
run plan-memory --model model --machine laptop
expect 2 out '' err 'laptop: no such machine preset or file'

# Outputs that cannot be written: a folder inside a file, a file system that takes nothing
for target in run.yaml/inside /proc/nothing; do
  run shard-weights --init tiny -o "$target"
  expect 1 out '' err "^shard-weights: error: .*$target"
  run finetune run.yaml --set output.output_dir="$target"
  expect 1 out '' err "^finetune: error: .*$target"
  run encode-clips clips -o "$target" --model model --size 64x64 --num-frames 9
  expect 1 err "^encode-clips: error: .*$target"
  run sample-video model --prompt x -o "$target/x.mp4" --num-frames 5 --steps 1
  [[ $status == 1 || $status == 2 ]] || fail "$shown: exit $status"
  expect "$status" out '' err "^sample-video: error: .*$target"
  run eval-vbench clips --html "$target/report.html"
  expect 1 err "^eval-vbench: error: .*$target"
  run plan-memory --model model --trace "$target/trace.json"
  expect 1 err "^plan-memory: error: .*$target"
done
[[ -f run.yaml ]] || fail "run.yaml is gone"

# A model directory is not replaced by its own export, nor a file of it
for out in model model/head.safetensors; do
  run shard-weights --export wan model -o "$out" --overwrite
  expect 1 out '' err 'is a model directory, which an export does not replace'
done
run shard-weights --verify model
expect 0
# Links that lead nowhere
ln -s loop loop
run plan-memory --model loop
expect 1 out '' err 'loop: Too many levels of symbolic links' err 'remedy: '
run sample-video model --prompt x -o loop/x.mp4
expect 2 out '' err 'loop is not a folder'

# A device that is not in this build, one that computes nothing
for command in "finetune run.yaml" "sample-video model --prompt x -o x.mp4 --num-frames 5 --steps 1"; do
  # shellcheck disable=SC2086  # words on purpose
  run $command --device cuda
  if ((status == 2)); then expect 2 out '' err '--device cuda: this program was built without CUDA' err 'remedy: use --device cpu'; fi
done

# A plan needs no cache, and says so
run plan-memory --run run.yaml --set data.cache=nowhere
expect 1 out '' err '^plan-memory: error: nowhere: not a latent cache' err 'remedy: .*encode-clips.*--num-frames N --size WxH'
run plan-memory --run run.yaml --set data.cache=nowhere --num-frames 9 --size 64x64
expect 0

# A budget that is too small: refused before anything is written, with remedies that fit when they are applied
run plan-memory --run run.yaml --set stream.device_budget=3MB
expect 3 out 'does not fit' out '--set stream\.device_budget=[0-9]+'
remedy=$(grep -oE 'stream\.device_budget=[0-9]+' <<<"$out" | head -n 1)
run plan-memory --run run.yaml --set stream.device_budget=3MB --json
expect 3 out '"fits": ?false' out '"remedies": ?\[.+\]'
run finetune run.yaml --set stream.device_budget=3MB
expect 3 out '' err '^finetune: error: does not fit' err '--set stream\.device_budget='
[[ ! -e run/checkpoints ]] || fail "a run that does not fit left checkpoints"
run plan-memory --run run.yaml --set "$remedy"
expect 0
run finetune run.yaml --set "$remedy" -q
expect 0 err ''
# What one program proposes has to fit in the other too, whose own memory differs
run plan-memory --run run.yaml --set stream.host_budget=1MB
expect 3 out '--set stream\.host_budget=[0-9]+'
remedy=$(grep -oE 'stream\.host_budget=[0-9]+' <<<"$out" | head -n 1)
run finetune run.yaml --set "$remedy" --set output.output_dir=fits -q
expect 0 err ''
run finetune run.yaml --set stream.host_budget=1MB --set stream.device_budget=1MB
expect 3 out '' err '--set stream\.device_budget=[0-9]+ --set stream\.host_budget=[0-9]+$'
read -ra remedies <<<"$(grep -oE -- '--set stream\.device_budget=[0-9]+ --set stream\.host_budget=[0-9]+$' <<<"$err")"
run plan-memory --run run.yaml "${remedies[@]}"
expect 0

# Lines for the next program, and only those, on standard output; a reader that leaves
run bash -c "shard-weights --info model --json 2>/dev/null | head -c 10"
expect 0 out '^\{'
run bash -c "shard-weights --info model --json | head -1 >/dev/null; exit \${PIPESTATUS[1]}"
expect 0 err ''
run bash -c "plan-memory --model wan2.1-t2v-14b --machine h200-1.5tb --json | head -c 1 >/dev/null"
[[ $status == 0 || $status == 141 ]] || fail "$shown: exit $status"
expect "$status" err ''
run bash -c "eval-vbench clips --json -q >/dev/full"
expect 1 err 'No space left on device'

# The same configuration again has nothing to do; another is refused with the keys that differ
run finetune run.yaml -q
expect 0
run finetune run.yaml --allow-config-change train.sed
expect 2 out '' err 'train\.sed: no such key; did you mean train\.seed\?'
run finetune run.yaml --set train.seed=5
expect 2 out '' err 'train\.seed: was 0, is 5'
finish
