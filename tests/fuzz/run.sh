#!/usr/bin/env bash
# Builds the fuzzers with clang and libFuzzer into build/fuzz, gives each its seeds and runs it; the last lines are a table.
# Needs Debian's clang and libclang-rt-VERSION-dev (on Debian 12 clang alone). Exits 1 where there are findings; they lie in
# build/fuzz/findings/HARNESS.
#
# Comparisons are not traced (trace-cmp): with the sanitizers' own among them that is two thirds of the time, and the seeds hold the words
# that parsers look for.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/fuzz/run.sh [--executions N] [--jobs N] [--seconds N] [--continue] [--save] [HARNESS...]

  --executions N  of each harness (default: 10000000)
  --jobs N        harnesses at a time (default: 1)
  --seconds N     a harness ends after this long, whatever it has reached (default: no limit)
  --continue      what earlier runs executed counts, that of stopped ones, too: a long search in several sittings
  --save          copies up to 32 inputs of at most 1 KiB from each minimised corpus to tests/data/fuzz
HARNESS: fuzz_NAME.cc's NAME; all without one. CXX names another clang++.
TEXT
}

executions=10000000 jobs=1 seconds=0 save=0 continued=0 names=()
while (($#)); do
  case $1 in
    --executions) executions=${2:?--executions needs a number}; shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
    --save) save=1; shift ;;
    --continue) continued=1; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) names+=("$1"); shift ;;
  esac
done
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$ROOT"
BUILD=$ROOT/build/fuzz
DATA=$ROOT/tests/data
SHARED=$ROOT/../shared
if ((${#names[@]} == 0)); then
  for source in tests/fuzz/fuzz_*.cc; do
    name=${source##*/fuzz_}
    names+=("${name%.cc}")
  done
fi

# Folders and files whose contents are like a harness's input, one a line.
seeds_of() {
  case $1 in
    safetensors) find "$DATA" "$SHARED" -name '*.safetensors' -size -9k ;;
    shard_index) find "$DATA" "$SHARED" -name '*.safetensors.index.json' ;;
    yaml_model) find configs/models -name '*.yaml' ;;
    yaml_machine) find configs/machines -name '*.yaml' ;;
    yaml_run) find configs/train configs/experiments -name '*.yaml' ;;
    dataset_tables) find "$DATA/cases" "$SHARED/cases" -name '*.csv' -o -name 'metadata.jsonl' -o -name 'videos.txt' ;;
    prompts | prompt_cleaning) find "$DATA/cases" "$SHARED/cases" -name 'prompts*.txt' ;;
    captions) find "$DATA/cases" "$SHARED/cases" -path '*caption*' -name '*.txt' ;;
    torch_archive) find "$DATA/checkpoints/torch" -name '*.pth' -size -9k ;;
    clip_vocabulary) find "$DATA/vbench" -name 'clip_bpe.json' ;;
    sentencepiece | tokenizer) find "$DATA/umt5/tokenizer" -name 'spiece.model' ;;
    eval_prompts) find "$DATA/cases/eval-names" "$SHARED/cases/eval-names" -name 'prompts.json' ;;
    config_json) find "$DATA" "$SHARED" -name 'config.json' -size -5k ;;
    attention_case) find "$DATA/dsa" "$SHARED/golden" -name '*.json' -size -3k ;;
    vbench_scores | score_set) find "$DATA/eval" -name '*.json' ;;
    png) find "$DATA/cases" "$SHARED/cases" -name '*.png' ;;
    video) find "$DATA/cases" "$DATA/eval" "$SHARED/cases" -name '*.mp4' -o -name '*.webm' -o -name '*.gif' -o -name '*.mkv' -o -name '*.avi' -o -name '*.mov' ;;
    *) ;;
  esac 2>/dev/null || true
}

# Longest input in bytes, seconds for one, MiB of memory, MiB above which an allocation fails (0: none does). A header that claims a
# large picture makes libav clear its memory, which is seconds for a run of a millisecond; libFuzzer itself takes 20 MiB at once.
limits_of() {
  case $1 in
    video) echo 32768 60 3000 24 ;;
    png) echo 4096 20 2048 0 ;;
    torch_archive) echo 4096 10 1024 0 ;;
    yaml_run) echo 2048 10 1024 0 ;;
    prompt_cleaning | prompts | dataset_tables | eval_prompts | run_sets) echo 512 10 1024 0 ;;
    sentencepiece | tokenizer) echo 6144 10 1024 0 ;;
    *) echo 1024 10 1024 0 ;;
  esac
}

prepare() {
  local name=$1 corpus=$BUILD/corpus/$1 file
  mkdir -p "$corpus" "$BUILD/findings/$name"
  if [[ -d $DATA/fuzz/$name ]]; then find "$DATA/fuzz/$name" -type f -exec cp -n -t "$corpus" {} +; fi
  seeds_of "$name" | while IFS= read -r file; do
    cp -n "$file" "$corpus/seed-$(sha1sum <"$file" | cut -c 1-12)"
  done
}

# Executions that the log of a run tells of, or 0. One that was killed has no statistics, only its last line of progress.
executed_in() {
  local count
  count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$1" 2>/dev/null | tail -1)
  [[ -n $count ]] || count=$(grep -aoE '^#[0-9]+' "$1" 2>/dev/null | tail -1 | tr -d '#') || true
  echo "${count:-0}"
}

# Executions of all runs before, of whom the last may still have its log alone. A search that does not continue one begins at 0.
executed_before() {
  local tally=$BUILD/executed/$1 log=$BUILD/logs/$1.log sum=0
  if ((continued)); then
    [[ -s $tally ]] && sum=$(<"$tally")
    sum=$((sum + $(executed_in "$log")))
  fi
  echo "$sum" >"$tally"
  if [[ -f $log ]]; then mv "$log" "$log.before"; fi
  echo "$sum"
}

run_one() {
  local name=$1 corpus=$BUILD/corpus/$1 log=$BUILD/logs/$1.log longest timeout memory largest before
  before=$(executed_before "$name")
  if ((before >= executions)); then
    if ((save)); then save_corpus "$name"; fi
    return
  fi
  read -r longest timeout memory largest <<<"$(limits_of "$name")"
  export ASAN_OPTIONS=$ASAN_OPTIONS:max_allocation_size_mb=$largest
  prepare "$name"
  local program=$BUILD/tests/fuzz_$name options=(-max_len="$longest" -timeout="$timeout" -rss_limit_mb="$memory" -malloc_limit_mb="$memory")
  # Libraries (libpng, libav, sentencepiece) are not instrumented: that a seed leads elsewhere in them is not seen, so seeds stay.
  "$program" "${options[@]}" -runs="$((executions - before))" -max_total_time="$seconds" -print_final_stats=1 -reload=0 -keep_seed=1 \
    -artifact_prefix="$BUILD/findings/$name/" "$corpus" >"$log" 2>&1 || true
  rm -rf "$corpus.small"
  mkdir "$corpus.small"
  if "$program" "${options[@]}" -merge=1 -artifact_prefix="$BUILD/findings/$name/" "$corpus.small" "$corpus" >"$log.merge" 2>&1; then
    rm -rf "$corpus"
    mv "$corpus.small" "$corpus"
  fi
  if ((save)); then save_corpus "$name"; fi
}

# Of a smallest set that covers what the corpus does, the inputs that are likely to cover most: 32, long ones first. Seeds and
# findings in the tree stay.
save_corpus() {
  local name=$1 target=$DATA/fuzz/$1 cover=$BUILD/cover/$1 count=0 file
  rm -rf "$cover"
  mkdir -p "$cover" "$target"
  "$BUILD/tests/fuzz_$name" -set_cover_merge=1 -max_len=1024 -artifact_prefix="$BUILD/findings/$name/" "$cover" "$BUILD/corpus/$name" >/dev/null 2>&1 || return 0
  find "$target" -type f -name 'case-*' -delete
  while read -r _ file; do
    ((count < 32)) || break
    count=$((count + 1))
    cp "$file" "$target/case-$(sha1sum <"$file" | cut -c 1-12)"
  done < <(find "$cover" -type f -printf '%s %p\n' | sort -rn)
}

row() {
  local name=$1 log=$BUILD/logs/$1.log lines
  lines=$(cat "$log.before" "$log" 2>/dev/null || true)
  last() { sed -n "s/$1/\\1/p" <<<"$lines" | tail -1; }
  printf '%-18s %12s %8s %9s %9s %9s\n' "$name" "$(($(<"$BUILD/executed/$name") + $(executed_in "$log")))" "$(last '.*cov: \([0-9]*\).*')" \
    "$(last '.*ft: \([0-9]*\).*')" "$(find "$BUILD/findings/$name" -type f | wc -l)" "$(last '^stat::average_exec_per_sec: *\([0-9]*\)')"
}

cmake --preset fuzz ${CXX:+-DCMAKE_CXX_COMPILER="$CXX"} >/dev/null
cmake --build build/fuzz --target "${names[@]/#/fuzz_}" megaslide_video
mkdir -p "$BUILD/logs" "$BUILD/executed"
# A short stack with each allocation and a quarantine that stays in a cache: to walk all of a stack, or to fetch memory that was long unused,
# is most of the time that a small input takes.
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=2:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:allocator_may_return_null=1:strict_string_checks=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
running=0
for name in "${names[@]}"; do
  if ((running == jobs)); then
    wait -n
    running=$((running - 1))
  fi
  run_one "$name" &
  running=$((running + 1))
done
wait
printf '%-18s %12s %8s %9s %9s %9s\n' harness executions cov features findings exec/s
for name in "${names[@]}"; do row "$name"; done
findings=$(find "${names[@]/#/$BUILD/findings/}" -type f | wc -l)
((findings == 0)) || { echo "$findings findings: build/fuzz/findings/HARNESS; run build/fuzz/tests/fuzz_HARNESS FILE"; exit 1; }
