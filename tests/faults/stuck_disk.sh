#!/usr/bin/env bash
# A disk that stops answering under a run: within seconds of train.stall_timeout the run ends with an error that names the
# call and the file, and can be resumed. One that is merely slow delays it.
#   stuck_disk.sh BIN-DIR SOURCE-DIR SHIM
set -uo pipefail
source "$(dirname "$0")/lib.sh"
prepare "$@"
record_calls

first() { awk -v call="$1" -v path="$out$2" '$2 == call && $3 == path { print $1; exit }' "$work/calls"; }
stuck() { # stuck CALL PATH-IN-OUTPUT WORD stop|continue
  local number what="stuck in $1 of output$2, $4" begin=$SECONDS
  number=$(first "$1" "$2")
  [[ -n $number ]] || { fail "$what: there is no such call"; return; }
  checks=$((checks + 1))
  restart_at 2
  with_fault "$out" "$number" stall FAULT_SECONDS=40
  train "$out" "$4" --set train.stall_timeout=3
  [[ $status == 1 ]] || fail "$what: exit $status: $stderr"
  grep -q '^finetune: error: the disk has not answered for 3 s:$' <<<"$stderr" && grep -qxF "  $3 $out$2" <<<"$stderr" && grep -q 'remedy: ' <<<"$stderr" || fail "$what: says $stderr"
  ((SECONDS - begin < 30)) || fail "$what: took $((SECONDS - begin)) s"
  check_checkpoints "$what"
  check_resumed "$what"
}
stuck write /checkpoints/step-00000003.tmp/layer-000.safetensors write stop
stuck fsync /checkpoints/step-00000003.tmp/manifest.json sync continue
stuck rename /checkpoints/step-00000003 'rename to' stop
stuck symlink /latest.tmp link stop
stuck write /metrics.jsonl write continue
stuck fsync "" sync stop

restart_at 2
with_fault "$out" "$(first fsync /checkpoints/step-00000003.tmp/layer-000.safetensors)" stall FAULT_SECONDS=2
train "$out" stop
checks=$((checks + 1))
[[ $status == 0 && -z $stderr && $(hash_in "$stdout") == "$expected" ]] || fail "a slow disk: exit $status: $stderr"
finish
