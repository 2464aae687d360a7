#!/usr/bin/env bash
# Runs every command of a page's EXAMPLES, block by block, in a folder that holds what the page says.
# Usage: examples.sh PAGE.scd BIN-DIR SOURCE-DIR
set -euo pipefail
page=$(realpath "$1") bin=$2 source=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$bin:$PATH LC_ALL=C
cd "$work"

declare -A made
need() {
  [[ -z ${made[$1]:-} ]] || return 0
  made[$1]=1
  case $1 in
    nothing) ;;
    clips)
      mkdir clips
      cp "$source"/tests/data/clips/*.{mp4,txt} clips/
      ;;
    prompts.txt) printf 'a green tree sways in the wind\ncars pass on a street\n' >prompts.txt ;;
    model) shard-weights --init tiny -o model --seed 1 -q >/dev/null ;;
    cache)
      need clips
      need model
      encode-clips clips -o cache --model model --size 64x64 --num-frames 17 -q >/dev/null
      ;;
    run.yaml)
      cat >run.yaml <<'YAML'
model: {path: model}
data: {cache: cache}
train: {max_train_steps: 2}
stream: {link: {kind: emulated}}
output: {output_dir: run}
YAML
      ;;
    *)
      echo "$page: nobody knows how to prepare '$1'"
      exit 1
      ;;
  esac
}

prepared=$(sed -n 's/^; Run by a test in a folder that holds: //p' "$page")
[[ -n $prepared ]] || { echo "$page does not say what its examples need"; exit 1; }
for what in $prepared; do need "$what"; done

awk -v folder="$work" '
  /^# / {examples = ($0 == "# EXAMPLES")}
  !examples {next}
  /^```/ {inside = !inside; blocks += inside; next}
  inside {print > (folder "/.block" sprintf("%02d", blocks))}
' "$page"

blocks=0
for block in "$work"/.block*; do
  [[ -f $block ]] || break
  blocks=$((blocks + 1))
  echo "== $(<"$block")"
  status=0
  bash -euo pipefail "$block" </dev/null >"$work/.out" 2>"$work/.err" || status=$?
  if ((status != 0)); then
    echo "FAILED: exit $status"
    tail -n 20 "$work/.err" "$work/.out"
    exit 1
  fi
done
((blocks > 0)) || { echo "$page has no examples"; exit 1; }
echo "$blocks examples passed"
