# shellcheck shell=bash
# tiny_run SOURCE-DIR: in this folder two clips with captions, a tiny model, their cache, and a run.yaml of one step with them.
tiny_run() {
  mkdir clips &&
    cp "$1"/tests/data/clips/{tree,street}.{mp4,txt} clips/ &&
    shard-weights --init tiny -o model --seed 1 -q >/dev/null &&
    encode-clips clips -o cache --model model --size 64x64 --num-frames 9 -q >/dev/null &&
    cat >run.yaml <<'YAML'
model: {path: model}
data: {cache: cache}
train: {max_train_steps: 1}
stream: {link: {kind: emulated}}
output: {output_dir: run}
YAML
}
