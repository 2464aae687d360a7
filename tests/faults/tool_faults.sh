#!/usr/bin/env bash
# Faults under the outputs of the other programs, and under what a training writes beside its checkpoints: the message names
# the file, nothing half-written looks whole, what was there before stays, and the next run gives the result of an
# undisturbed one.
#   tool_faults.sh BIN-DIR SOURCE-DIR SHIM
# MEGASLIDE_FAULTS=all: every call with every fault.
set -uo pipefail
source "$(dirname "$0")/lib.sh"
prepare "$@"
place=$work/place    # what is disturbed lies in here
model=$work/model
"$bin/shard-weights" --export diffusers "$model" -o "$work/exported" -q >/dev/null 2>&1 || fail "no export"
"$bin/shard-weights" --init "$work/model.yaml" -o "$work/other" --seed 2 -q >/dev/null || fail "no second model"
cases=0

work_of() { # work_of NAME: the program at work in $place
  case $1 in
    init) disturbed "$bin/shard-weights" --init "$work/model.yaml" -o "$place/model" --seed 1 -q --threads 1 ;;
    replace) disturbed "$bin/shard-weights" --init "$work/model.yaml" -o "$place/model" --seed 1 -q --threads 1 --overwrite ;;
    import) disturbed "$bin/shard-weights" "$work/exported" -o "$place/model" -q --threads 1 ;;
    export-file) disturbed "$bin/shard-weights" --export wan "$model" -o "$place/weights.safetensors" -q --threads 1 ;;
    export-folder) disturbed "$bin/shard-weights" --export wan "$model" -o "$place/export" -q --threads 1 --max-shard-size 20kB ;;
    encode) disturbed "$bin/encode-clips" "$work/clips" -o "$place/cache" --model "$model" --num-frames 5 --size 32x32 -q --threads 1 ;;
  esac
}
start_of() { # start_of NAME: $place as it is before
  rm -rf "$place"
  mkdir "$place"
  [[ $1 != replace ]] || cp -r "$work/other" "$place/model"
}
listing() { (cd "$1" && find . -type f ! -name .lock -exec sha256sum {} + | sort -k2); }

# A result that has its name is whole; before there is one, what was there stays. The cache is many files, each of them whole
# or absent, and its index comes last.
check_left() { # check_left NAME WHAT
  local left
  if [[ $1 == encode ]]; then
    left=$(listing "$place" | grep -v '\.tmp-[0-9]*$' | grep -vxFf "$work/$1.listing" | grep -v ' ./cache/captions/')
    [[ -z $left ]] || fail "$2: is not what is written there: $left"
  else
    left=$(cd "$place" && find . -type f | grep -v '\.tmp\b' | grep -v '\.old-' | sort)
    [[ -z $left ]] || [[ $(listing "$place" | grep -v '\.tmp\b' | grep -v '\.old-') == "$(<"$work/$1.listing")" ]] ||
      [[ $1 == replace && -z $(diff -r "$place/model" "$work/other") ]] || fail "$2: half of it looks whole: $left"
  fi
}

disturb() { # disturb NAME NUMBER CALL PATH ACTION
  local what="$1: $5 at call $2, $3 $4" left
  start_of "$1"
  with_fault "$place" "$2" "$5"
  work_of "$1"
  cases=$((cases + 1)) checks=$((checks + 1))
  case $5 in
    kill | torn) [[ $status == 137 ]] || fail "$what: was not killed but ended with $status" ;;
    short) [[ $status == 0 ]] || fail "$what: exit $status: $stderr" ;;
    *)
      if [[ $status == 1 ]]; then
        grep -q 'error: ' <<<"$stderr" && grep -qF "$(reason_of "$5")" <<<"$stderr" && grep -q 'remedy: ' <<<"$stderr" && grep -qF "$place" <<<"$stderr" || fail "$what: says $stderr"
        left=$(find "$place" -name '*.tmp*')
        # Until the exchange is on the disk, the old content is kept under the temporary name.
        [[ $5 == gone || ($1 == replace && $4 == "$place") || $3 == unlink* || $3 == remove || $3 == rmdir || -z $left ]] || fail "$what: left behind: $left"
      elif [[ $status != 0 ]]; then
        fail "$what: exit $status: $stderr"
      else
        # Removing in vain, letting a lock go, the number in it, and a look at whether a folder is empty need no success.
        [[ $3 == unlink* || $3 == remove || $3 == rmdir || $3 == openat || $4 == */.lock ]] || fail "$what: went unnoticed: $stderr"
        [[ $(listing "$place") == "$(<"$work/$1.listing")" || $stderr == *warning:* ]] || fail "$what: gave another result: $stderr"
      fi
      ;;
  esac
  check_left "$1" "$what"
  # Again, undisturbed, over what was left.
  without_fault
  if [[ $1 != encode && -e $place/model && $1 != replace ]] || [[ -e $place/export || -e $place/weights.safetensors ]]; then return; fi
  work_of "$1"
  [[ $status == 0 ]] || fail "$what: the next run failed: $stderr"
  # A file's temporary is beside it, in a folder of the user's: nobody may say that it is left over.
  [[ $(listing "$place" | grep -v 'weights.safetensors.tmp-[0-9]*$') == "$(<"$work/$1.listing")" ]] || fail "$what: the next run gave another result: $(find "$place")"
}

turn=0
for name in init replace import export-file export-folder encode; do
  start_of "$name"
  with_fault "$place" 0 kill "FAULT_LOG=$work/$name.calls"
  work_of "$name"
  [[ $status == 0 ]] || { echo "$name undisturbed: $stderr"; exit 1; }
  listing "$place" >"$work/$name.listing"
  actions=(ENOSPC kill EIO full EDQUOT torn gone short)
  if [[ ${MEGASLIDE_FAULTS:-} == all ]]; then
    while read -r number call path _; do
      for action in "${actions[@]}"; do
        [[ $call == write || ($action != torn && $action != short) ]] && disturb "$name" "$number" "$call" "$path" "$action"
      done
    done <"$work/$name.calls"
  else
    sed -E 's/tmp-[0-9]+/tmp-N/' "$work/$name.calls" | awk '!seen[$2 $3]++' >"$work/chosen"
    while read -r number call path _; do
      action=${actions[turn++ % ${#actions[@]}]}
      [[ $call != write && $action == torn ]] && action='kill'
      [[ $call != write && $action == short ]] && action=EIO
      disturb "$name" "$number" "$call" "$path" "$action"
    done <"$work/chosen"
  fi
done
# A file system that cannot exchange two names: one after the other, with the same result.
start_of replace
with_fault "$place" "$(awk '$2 == "renameat2" { print $1 }' "$work/replace.calls")" EINVAL
work_of replace
checks=$((checks + 1))
[[ $status == 0 && $(listing "$place") == "$(<"$work/replace.listing")" ]] || fail "names that cannot be exchanged: exit $status: $stderr, $(find "$place")"

echo "$cases faults"
((cases >= 60)) || fail "only $cases faults"

# A trace that cannot be written is an error, but the run is done: its checkpoint is whole.
restart_at 2
mkdir -p "$place/trace"
with_fault "$place/trace" 1 full
train "$out" stop --trace "$place/trace/run.json"
checks=$((checks + 1))
[[ $status == 1 ]] && grep -qF "$place/trace/run.json" <<<"$stderr" && grep -qF 'No space left' <<<"$stderr" || fail "a trace on a full disk: exit $status: $stderr"
[[ -z $(ls "$place/trace") ]] || fail "a trace on a full disk left something"
check_checkpoints "a trace on a full disk"
check_resumed "a trace on a full disk"
finish
