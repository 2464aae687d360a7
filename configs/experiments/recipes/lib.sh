# shellcheck shell=bash
# Shared by the recipes beside it: a recipe runs public programs, keeps a row for each command, and writes the rows with
# charts and tables of them as $OUT/TARGET.json. The Makefile sets BIN (the programs), OUT (where results go) and QUICK.
#
# A row is made once: an interrupted target goes on where it stopped. It is made again when its command or a YAML file that
# the command names has changed; after a change of the programs, `make clean` starts anew.
set -euo pipefail
: "${BIN:?the Makefile sets it}" "${OUT:?the Makefile sets it}" "${QUICK:=0}"
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$ROOT"
HERE=configs/experiments
# Commands in a report read as they are typed in the root of the tree.
OUT=${OUT#"$ROOT/"}
TARGET=$(basename "$0" .sh)
WORK=$OUT/$TARGET
ids=()
started=$SECONDS
mkdir -p "$WORK/rows"

say() { printf '%s: %s\n' "$TARGET" "$*" >&2; }
fail() {
  printf '%s: error: %s\n' "$TARGET" "$*" >&2
  exit 1
}
quick() { [[ $QUICK == 1 ]]; }
# either QUICK-VALUE FULL-VALUE
either() { if quick; then echo "$1"; else echo "$2"; fi; }
run() { "$BIN/$1" "${@:2}"; }

# The settings that a row's numbers depend on beside its command: the YAML files that the command names.
inputs_of() {
  local word
  for word; do
    case $word in *.yaml) [[ -f $word ]] && cat "$word" ;; esac
  done | sha256sum | cut -c1-16
}

# begin ID COMMAND...: whether the row must be made. Sets the row's id, command and inputs for `keep`.
begin() {
  row_id=$1 row_command="${*:2}"
  row_inputs=$(inputs_of "${@:2}")
  row_file=$WORK/rows/$row_id.json
  ids+=("$row_id")
  [[ ! -s $row_file ]] || ! jq -e --arg c "$row_command" --arg i "$row_inputs" '.command == $c and .inputs == $i' "$row_file" >/dev/null || return 1
  say "$row_id"
}
# keep KIND < VALUES: the row, whole or not at all. KIND: measured, simulated, derived. What was measured beside other work says so
# by its load: runnable threads at the end of the row, over the last minute.
keep() {
  local load=null
  [[ $1 != measured ]] || load=$(cut -d' ' -f1 /proc/loadavg)
  jq -c --argjson load "$load" --arg id "$row_id" --arg kind "$1" --arg command "$row_command" --arg inputs "$row_inputs" --arg date "$(date -u +%F)" \
    '{id: $id, kind: $kind, date: $date, command: $command, inputs: $inputs, values: .} | if $load == null then . else .load = $load end' >"$row_file.new"
  mv "$row_file.new" "$row_file"
}
value() { jq -r ".values$2" "$WORK/rows/$1.json"; }  # value ROW PATH

# plan ID ARGUMENT...: what plan-memory answers. "Does not fit" is an answer too.
plan() {
  local status=0
  begin "$1" plan-memory "${@:2}" --json || return 0
  run plan-memory "${@:2}" --json -q >"$WORK/answer" || status=$?
  ((status == 0 || status == 3)) || fail "$row_command: exit $status"
  jq 'del(.remedies) | .host.state = .host.weights + .host.masters + .host.moments + .host.gradients' "$WORK/answer" | keep simulated
}
# derive ID EXPRESSION: arithmetic on numbers that are given, with the expression as its command.
derive() {
  begin "$1" jq -n "'$2'" || return 0
  jq -n "{value: ($2)}" | keep derived
}
# train ID ARGUMENT...: a run of finetune, in the folder $WORK/runs/ID, less its checkpoints unless KEEP=1.
train() {
  local id=$1 folder=$WORK/runs/$1
  begin "$id" finetune "${@:2}" --set "output.output_dir=$folder" || return 0
  rm -rf "$folder"
  run finetune "${@:2}" --set "output.output_dir=$folder" -q --progress never --json >"$WORK/answer"
  jq -s --slurpfile summary "$WORK/answer" -f "$HERE/recipes/metrics.jq" "$folder/metrics.jsonl" | keep measured
  [[ ${KEEP:-0} == 1 ]] || rm -rf "$folder/checkpoints" "$folder/latest"
}
# difference_row ID WHAT A B A B...: the mean of A - B over pairs, with half of Student's 95% interval and its upper end.
difference_row() {
  begin "$1" make -C $HERE "$TARGET" "# $2:" "${@:3}" || return 0
  printf '%s\n' "${@:3}" | jq -s "$(cat "$HERE/recipes/interval.jq")"'[range(0; length; 2) as $i | .[$i] - .[$i + 1]]
    | {mean: mean, half: half, upper: (mean as $m | half as $h | if $h == null then null else $m + $h end), each: .}' | keep measured
}
# finetune's flags for keys: sets KEY=VALUE... fills the array `set`.
sets() {
  local s
  set_flags=()
  for s; do set_flags+=(--set "$s"); done
}

machine() {
  local processor
  processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
  printf '%s, %s threads, %s of memory, %s' "${processor:-$(uname -m)}" "$(nproc)" \
    "$(awk '/^MemTotal/ {printf "%.0f GB", $2 * 1024 / 1e9}' /proc/meminfo)" "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)"
}
# Results in the tree are what is being made: they do not change what makes them.
version() {
  local commit
  commit=$(git -c safe.directory='*' describe --always 2>/dev/null) || { run plan-memory --version; return; }
  git -c safe.directory='*' diff --quiet HEAD -- . ":!$HERE/results" || commit+=-dirty
  echo "$commit"
}

# finish TITLE < JQ-PROGRAM: the target's document. The program sees the rows and says {text, charts, tables, pictures}; `row`
# finds a row by its id, `rows` those whose id begins so.
finish() {
  local id
  for id in "${ids[@]}"; do cat "$WORK/rows/$id.json"; done | jq -s . >"$WORK/rows.json"
  cat "$HERE/recipes/interval.jq" "$HERE/recipes/document.jq" - >"$WORK/document.jq"
  jq --arg target "$TARGET" --arg title "$1" --arg date "$(date -u +%F)" --arg machine "$(machine)" --arg version "$(version)" \
    --argjson quick "$(either true false)" --argjson seconds $((SECONDS - started)) --arg work "$TARGET" -f "$WORK/document.jq" "$WORK/rows.json" >"$OUT/$TARGET.json.new"
  mv "$OUT/$TARGET.json.new" "$OUT/$TARGET.json"
  say "$OUT/$TARGET.json, ${#ids[@]} rows, $((SECONDS - started)) s"
}
