#!/usr/bin/env bash
# Lets the file system calls of a run that checkpoints fail, come back short, or be its last one, and looks at what is left:
# every checkpoint whole, the message in words, and going on ends where an undisturbed run does.
#   checkpoint_faults.sh BIN-DIR SOURCE-DIR SHIM
# One fault for each kind of call on each file; MEGASLIDE_FAULTS=all: every call, with every fault that it may meet (some
# ten minutes).
set -uo pipefail
source "$(dirname "$0")/lib.sh"
prepare "$@"

# It saves steps 3 and 4 and removes 1 and 2.
record_calls
[[ $(hash_in "$stdout") == "$expected" ]] || fail "the undisturbed continuation ends in another state"
calls=$(wc -l <"$work/calls")
((calls > 100)) || fail "only $calls calls were seen"

is_data() { [[ $1 == write || $1 == writev || $1 == pwrite* ]]; }
# What is removed in vain, or let go of at the end, needs no word.
is_silent() { [[ $1 == unlink || $2 == */.lock ]]; }

inject() { # inject NUMBER CALL PATH ACTION stop|continue
  local what="$4 at call $1, $2 $3, $5" reason
  restart_at 2
  with_fault "$out" "$1" "$4"
  train "$out" "$5"
  cases=$((cases + 1)) checks=$((checks + 1))
  reason=$(reason_of "$4")
  case $4 in
    kill | torn) [[ $status == 137 ]] || fail "$what: was not killed but ended with $status" ;;
    short) [[ $status == 0 && -z $stderr ]] || fail "$what: ended with $status: $stderr" ;;
    *)
      if [[ $status == 1 ]]; then
        grep -q '^finetune: error: ' <<<"$stderr" && grep -qF "$reason" <<<"$stderr" && grep -q 'remedy: ' <<<"$stderr" || fail "$what: says $stderr"
      elif [[ $status != 0 ]]; then
        fail "$what: ended with $status: $stderr"
      else
        # What is no part of a checkpoint fails with a warning.
        is_silent "$2" "$3" || grep -qF "$reason" <<<"$stderr" || fail "$what: went unnoticed: $stderr"
        [[ $5 == continue || -e $out/checkpoints/step-00000003 ]] && [[ $(readlink "$out/latest") == *step-00000004 ]] || fail "$what: a checkpoint is missing: $stderr"
      fi
      if [[ -n $stderr ]]; then
        # Where everything fails from here on, another call's message may come first.
        local named=${3%%.tmp*}
        [[ $4 == full || $4 == gone ]] && named=$out
        grep -qF "$named" <<<"$stderr" || grep -qF "$(dirname "$named")" <<<"$stderr" || fail "$what: names no path of it: $stderr"
      elif ! is_silent "$2" "$3"; then
        fail "$what: silence"
      fi
      if [[ $4 != gone && $2 != unlink* && $stderr != *"an old checkpoint stays"* ]]; then
        local left
        left=$(find "$out" -name '*.tmp*')
        [[ -z $left ]] || fail "$what: left behind: $left"
      fi
      ;;
  esac
  check_checkpoints "$what"
  check_resumed "$what"
}

cases=0
errors=(ENOSPC EIO EDQUOT full gone)
turn=0
every_fault() { # every_fault NUMBER CALL PATH
  local e
  inject "$@" kill stop
  if is_data "$2"; then
    # A file takes many writes, which fail alike: over them all errors are used.
    inject "$@" "${errors[$1 % ${#errors[@]}]}" stop
    inject "$@" "${errors[($1 + 1) % ${#errors[@]}]}" continue
    inject "$@" short stop
    inject "$@" torn stop
  else
    for e in "${errors[@]}"; do inject "$@" "$e" stop; done
    inject "$@" EIO continue
    inject "$@" full continue
  fi
}
# One after the other, so that over the calls all are used.
one_fault() {
  local turns=("ENOSPC stop" "kill stop" "EIO continue" "full stop" "kill stop" "EDQUOT stop" "gone continue" "short stop" "torn stop")
  is_data "$2" || turns=("${turns[@]:0:7}")
  # shellcheck disable=SC2086
  inject "$@" ${turns[turn++ % ${#turns[@]}]}
}
if [[ ${MEGASLIDE_FAULTS:-} == all ]]; then
  while read -r number call path _; do every_fault "$number" "$call" "$path"; done <"$work/calls"
else
  # The first call of a kind on a file, process numbers and steps aside.
  sed -E 's/tmp-[0-9]+/tmp-N/' "$work/calls" | awk '{ key = $2 " " $3; gsub(/step-[0-9]+/, "step", key) } !seen[key]++' >"$work/chosen"
  while read -r number call path _; do one_fault "$number" "$call" "$path"; done <"$work/chosen"
fi
echo "$cases faults among $calls calls"
((cases >= 40)) || fail "only $cases cases"
finish
