#!/usr/bin/env bash
# shard-weights as a shell sees it. Usage: shard_weights.sh PROGRAM DATA
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
program=$1
source=$2/wan/dit/a
work=$temporary/work
mkdir "$work"
cd "$work" || exit 1

# Round trip: the exported single file has the imported one's bytes
run "$program" "$source/diffusers" -o model
expect 0 out '^parameters +27944$' out '^dtype +F32$' err ''
run "$program" --export diffusers model -o again.safetensors
expect 0 out '^again.safetensors$'
cmp -s again.safetensors "$source/diffusers/diffusion_pytorch_model.safetensors" || fail "diffusers export differs"
run "$program" --export wan model -o orig.safetensors --json
expect 0 out '^\{"files":\["orig.safetensors"\]\}$'
cmp -s orig.safetensors "$source/orig/orig.safetensors" || fail "wan export differs"
run "$program" --export diffusers model -o shards --max-shard-size 30kB
expect 0 out 'shards/diffusion_pytorch_model-00001-of-0000[0-9].safetensors' out 'shards/config.json'
run "$program" shards -o model2 -q
expect 0 err ''
[[ $("$program" --hash model) == "$("$program" --hash model2)" ]] || fail "hash differs after a round trip through shards"

# A repack's prefix, PyTorch's archive, parts by flags
run "$program" --export wan model -o repack.safetensors --prefix model.diffusion_model.
expect 0
grep -q '"model.diffusion_model.blocks.0.self_attn.q.weight"' repack.safetensors || fail "no prefix"
cp "$source/orig/config.json" config.json
cp "$2/checkpoints/torch/model.pth" .
for file in repack.safetensors model.pth; do
  run "$program" $file -o again -q --overwrite
  expect 0 err ''
  [[ $("$program" --hash model) == "$("$program" --hash again)" ]] || fail "hash differs after $file"
done
run "$program" model.pth -o whole --vae "$2/vae/w21"
expect 0 out '^parts +vae$'
run "$program" model.pth -o x --text-encoder "$2/umt5/text_encoder" --tokenizer "$2/umt5/tokenizer"
expect 1 err '64 wide embeddings, but the transformer has 16'
run "$program" --export diffusers whole -o pipeline --json
expect 0 out '"pipeline/vae/config.json"' out '"pipeline/transformer/config.json"' out '"pipeline/model_index.json"'
run "$program" "$2/checkpoints/torch/module.pth" -o x
expect 1 out '' err 'module.pth: data.pkl byte 2: global torch.nn.modules.linear.Linear: not a tensor; nothing was run'
run "$program" --export wan model -o x --vae "$2/vae/w21"
expect 2 err '--vae, --text-encoder and --tokenizer belong to an import'
run "$program" "$source/orig" -o x --prefix y
expect 2 err '--prefix belongs to --export'

# What it says about a model
run "$program" --hash model
expect 0 out '^[0-9a-f]{64}$' err ''
run "$program" --info model --json
expect 0 out '"architecture":"wan"' out '"parameters":27944' out '"attention":"dense"' out '"dtype":"F32"'
run "$program" --verify model
expect 0 out '' err ''

# One flipped bit, a file cut short, a file that is gone
cp -r model bad
printf '\x7f' | dd of=bad/layer-001.safetensors bs=1 seek=9000 conv=notrunc status=none
truncate -s -1 bad/embed.safetensors
rm bad/head.safetensors
run "$program" --verify bad
expect 3 out '^layer-001.safetensors: content differs' out '^embed.safetensors: content differs' out '^head.safetensors: open ' err ''
[[ $(wc -l <"$temporary/out") == 3 ]] || fail "verify names other files too: $out"
run "$program" --verify bad --json
expect 3 out '"ok":false'
run "$program" --info bad
expect 1 out '' err '^shard-weights: error: bad/(embed|head).safetensors' err '^  remedy: '

# From nothing
run "$program" --init tiny -o t1 --seed 5
expect 0 out '^attention +dsa$'
run "$program" --init tiny -o t2 --seed 5 --threads 3
[[ $("$program" --hash t1) == "$("$program" --hash t2)" ]] || fail "the seed does not decide"
run "$program" --init tiny -o t3 --seed 6 --dtype bf16 --attention dense
expect 0 out '^dtype +BF16$' out '^attention +dense$'

# Refusals
run "$program" "$source/diffusers" -o model
expect 1 err 'model exists and is not empty' err '--overwrite'
run "$program" "$source/diffusers" -o model --overwrite
expect 0
run "$program" "$source/diffusers"
expect 2 err 'give -o'
run "$program" --init tiny "$source" -o x
expect 2 err 'from nothing'
run "$program" --verify --hash model
expect 2 err 'only one of'
run "$program" --export torch model -o x
expect 2 err 'diffusers, wan'
run "$program" --export wan model -o x --max-shard-size 5Zb
expect 2 err 'max-shard-size'
run "$program" nowhere -o x
expect 1 err 'nowhere: no such file or folder'
run "$program" --init tinny -o x
expect 2 err 'tiny'
head -c 3000 "$source/orig/orig.safetensors" >cut.safetensors
run "$program" cut.safetensors -o x
expect 1 out '' err 'cut.safetensors: not a safetensors file: its header of [0-9]+ bytes would end past' err 'remedy: '
head -c 9000 "$source/orig/orig.safetensors" >cut.safetensors
run "$program" cut.safetensors -o x
expect 1 out '' err 'cut.safetensors: the header describes [0-9]+ bytes of tensor data, the file holds [0-9]+' err 'cut short'
[[ ! -e x && ! -e x.tmp ]] || fail "a refused import left something behind"
run bash -c "'$program' --info model --json | head -c 1 >/dev/null"
expect 0 err ''
finish
