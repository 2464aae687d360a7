#!/usr/bin/env bash
# The plan beside the run, a row a configuration: device peak (equal to the byte), host memory (within 2%) and step time
# (within 15% of a plan at rates that --calibrate measures just before). Each run is measured in several short pieces, of
# whose steps the median counts, since other work on the machine only ever slows a step.
#   plan_vs_run.sh BIN [ROW...]
set -euo pipefail
bin=$1
shift
steps=${STEPS:-12}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=$(cd "$(dirname "$0")/../tests/data" && pwd)

# NAME | MODEL | RUNS | KEY=VALUE..., and CACHE=NAME where it is not `short`
rows='
tiny dense           | tiny-dense | 3 | data.batch_size=4
tiny dsa             | tiny-dsa   | 3 | data.batch_size=4
tiny dsa, link       | tiny-dsa   | 3 | data.batch_size=4 stream.link.kind=emulated stream.link.bandwidth=400MB/s
tiny, accumulation 4 | tiny-dense | 3 | data.batch_size=1 train.gradient_accumulation_steps=4
tiny, codecs         | tiny-dense | 3 | data.batch_size=4 optimizer.masters=bf16-sr optimizer.moments=int8
tiny, Adam on device | tiny-dense | 3 | data.batch_size=4 optimizer.device=device stream.link.kind=emulated stream.link.bandwidth=2GB/s
tiny, slabs of 8     | tiny-dsa   | 3 | CACHE=long data.batch_size=1 stream.slabs=8 stream.link.kind=emulated stream.link.bandwidth=2GB/s
width of 1.3B        | wide       | 1 | data.batch_size=1
width of 1.3B, link  | wide       | 1 | data.batch_size=1 stream.link.kind=emulated stream.link.bandwidth=300MB/s
width of 1.3B, slabs | wide-dsa   | 1 | CACHE=long data.batch_size=1 stream.slabs=8 stream.link.kind=emulated stream.link.bandwidth=2GB/s
width of 1.3B, nvme  | wide       | 1 | data.batch_size=1 stream.tier=nvme
'

cat >"$work/wide.yaml" <<END
name: wide
dim: 1536
heads: 12
ffn_dim: 8960
layers: 4
text_dim: 64
text_len: 32
attention: dense
codec: haar
text_encoder: hashed-ngram
num_frames: 9
size: 64x64
fps: 8
END
model() { # model NAME: made at its first use
  [ -d "$work/$1" ] || case $1 in
    wide) "$bin/shard-weights" --init "$work/wide.yaml" -o "$work/wide" --seed 1 -q >/dev/null ;;
    wide-dsa) "$bin/shard-weights" --init "$work/wide.yaml" --attention dsa -o "$work/wide-dsa" --seed 1 -q >/dev/null ;;
    *) "$bin/shard-weights" --init tiny --attention "${1#tiny-}" -o "$work/$1" --seed 1 -q >/dev/null ;;
  esac
}
model tiny-dsa
cache() { # cache NAME: made at its first use. Slabs are for clips longer than their buffers
  [ -d "$work/cache-$1" ] || case $1 in
    short) "$bin/encode-clips" "$data/clips" -o "$work/cache-short" --model "$work/tiny-dsa" --num-frames 9 --size 64x64 -q >/dev/null ;;
    long)
      "$bin/make-motion-clips" -o "$work/clips" --count 1 --num-frames 129 --size 64x64 --seed 1 -q >/dev/null
      "$bin/encode-clips" "$work/clips" -o "$work/cache-long" --model "$work/tiny-dsa" --num-frames 129 --size 64x64 -q >/dev/null
      ;;
  esac
}

field() { grep -o "\"$1\":[0-9.e+-]*" "$2" | cut -d: -f2; }
largest() { field "$1" "$2" | sort -n | tail -1; }

printf '%-22s %12s %12s %6s %8s %9s %9s %6s  %s\n' configuration 'device plan' 'device run' equal 'host' 's planned' 's a step' ratio 'least ... most of a run'
while IFS='|' read -r name model repeats sets; do
  name=$(xargs <<<"$name") model=$(xargs <<<"$model") repeats=$(xargs <<<"$repeats")
  [ -n "$name" ] || continue
  [ $# = 0 ] || printf '%s\n' "$@" | grep -qxF "$name" || continue
  model "$model"
  clips=short
  case $sets in *CACHE=*) clips=${sets##*CACHE=} clips=${clips%% *} sets=${sets/CACHE=$clips/} ;; esac
  cache "$clips"
  arguments=()
  for s in $sets "train.max_train_steps=$steps" "model.path=$work/$model" "data.cache=$work/cache-$clips"; do arguments+=(--set "$s"); done
  echo '{}' >"$work/run.yaml"
  ratios=()
  for _ in $(seq "$repeats"); do
    rm -rf "$work/out"
    "$bin/plan-memory" --calibrate --run "$work/run.yaml" "${arguments[@]}" -o "$work/machine.yaml" -q >/dev/null
    "$bin/plan-memory" --run "$work/run.yaml" "${arguments[@]}" --machine "$work/machine.yaml" --json >"$work/plan.json" || true
    "$bin/finetune" "$work/run.yaml" "${arguments[@]}" --set "output.output_dir=$work/out" -q --progress never >/dev/null
    seconds=$(field seconds "$work/out/metrics.jsonl" | tail -n +3 | sort -g | awk '{x[NR]=$1} END{print x[int((NR+1)/2)]}')
    planned=$(field step_seconds "$work/plan.json")
    ratios+=("$(awk -v r="$seconds" -v p="$planned" 'BEGIN{print r / p, p, r}')")
  done
  middle=$(printf '%s\n' "${ratios[@]}" | sort -g | awk '{x[NR]=$0} END{print x[int((NR+1)/2)]}')
  spread=$(printf '%s\n' "${ratios[@]}" | sort -g | awk 'NR==1{a=$1} {b=$1} END{printf "%.2f ... %.2f", a, b}')
  read -r ratio planned seconds <<<"$middle"
  device_plan=$(field peak "$work/plan.json") device_run=$(largest device_peak_bytes "$work/out/metrics.jsonl")
  host_plan=$(field total "$work/plan.json" | head -1) host_run=$(largest host_rss_bytes "$work/out/metrics.jsonl")
  printf '%-22s %12d %12d %6s %8.4f %9.4f %9.4f %6.2f  %s\n' "$name" "$device_plan" "$device_run" \
    "$([ "$device_plan" = "$device_run" ] && echo yes || echo NO)" "$(awk -v a="$host_run" -v b="$host_plan" 'BEGIN{print a / b}')" "$planned" "$seconds" "$ratio" "$spread"
done <<<"$rows"
