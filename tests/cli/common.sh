#!/usr/bin/env bash
# What every program does alike: exit status, streams, messages, signals. Usage: common.sh PROBE
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
probe=$1
unset NO_COLOR

# Help and version
run "$probe" --help
expect 0 out '^Usage: probe \[OPTION\]\.\.\. \[WORD\]$' out '^Common:$' out '^Example:$' err ''
[[ $(head -c 1000000 "$temporary/out" | awk 'length > 100' | wc -l) == 0 ]] || fail "--help has lines longer than 100"
run "$probe" -h
expect 0 out '^Usage'
run "$probe" --version
expect 0 out '^probe \(MegaSlide\) [0-9]+\.[0-9]+\.[0-9]+$' err ''

# Exit status by the kind of error; messages on standard error with the remedy
run "$probe" --fail failure
expect 1 out '' err '^probe: error: layer 3: it broke$' err '^  remedy: mend it$'
run "$probe" --fail usage
expect 2 out '' err '^probe: error: wrong$'
run "$probe" --fail no
expect 3 out '' err '^probe: error: does not fit$'
run "$probe" --fail memory
expect 1 err '^probe: error: out of memory$'
run "$probe" --fail other
expect 1 err '^probe: error: unexpected: surprise$'
run "$probe" --status 3
expect 3

# Wrong command lines
run "$probe" --lnies 3
expect 2 out '' err "^probe: error: unknown option '--lnies'\$" err 'did you mean --lines\?'
run "$probe" one two
expect 2 err "unexpected argument 'two'"
run "$probe" --lines
expect 2 err '--lines'
run "$probe" --lines 1 --lines 2
expect 2 err '^probe: error: --lines: given more than once$'
run "$probe" --lines 0x10
expect 2 err 'expected an integer from 0 to 1000000000, got "0x10"'
for value in 010 1e3 -1 '' 1.5 99999999999999999999; do
  run "$probe" --lines="$value"
  expect 2 err 'lines'
done
run "$probe" --number nan
expect 2 err 'expected a number from 0 to 1, got "nan"'
run "$probe" --size 64
expect 2 err 'expected a width and a height such as 832x480, got "64"'
run "$probe" --threads 0
expect 2 err 'expected an integer from 1 to 4096'
run "$probe" --device tpu
expect 2 err 'expected one of cpu, cuda, sim, got "tpu"'
run "$probe" --compute-dtype fp16
expect 2 err 'expected one of bf16, fp32'
run "$probe" --seed -5
expect 2 err 'seed'
run "$probe" -q -v
expect 2 err 'contradict'
run "$probe" --device cuda
if [[ $status != 0 ]]; then expect 2 err '^probe: error: --device cuda: this program was built without CUDA$' err 'remedy: use --device cpu'; fi

# Values
run "$probe" -q --json --threads 3 --seed 18446744073709551615 --device sim --compute-dtype fp32 --size 832x480 --grid 5x30x52 --bytes 24GiB
expect 0 out '^\{"threads": 3, "seed": 18446744073709551615, "device": "sim", "dtype": "fp32", "size": \[832, 480\], "grid": \[5, 30, 52\], "bytes": 25769803776, "presets": [0-9]+\}$'
run "$probe" -q --json
expect 0 out '"seed": null, "device": "cpu", "dtype": ""'

# Messages by level
run "$probe"
expect 0 out '' err '^a note$' err '^probe: warning: a warning$'
grep -q detail "$temporary/err" && fail "details without -v"
run "$probe" -q
expect 0 err '^probe: warning: a warning$'
[[ $(wc -l <"$temporary/err") == 1 ]] || fail "-q says more than warnings"
run "$probe" -v
expect 0 err '^a detail$'
grep -q $'\033' "$temporary/err" && fail "colour off a terminal"

# Progress: on standard error, one line at the end with always, nothing for short work otherwise
run "$probe" -q --progress always --work 5
expect 0 out '' err '^working 5 pieces in [0-9.]+ s$'
grep -q $'[\r\033]' "$temporary/err" && fail "progress is redrawn off a terminal"
run "$probe" --progress never --work 5
expect 0 out ''
grep -q working "$temporary/err" && fail "--progress never draws"
run "$probe" --work 5
grep -q working "$temporary/err" && fail "progress of short work off a terminal"
if command -v script >/dev/null; then
  TERM=xterm script -qec "'$probe' --work 50" /dev/null >"$temporary/terminal" </dev/null
  grep -q $'\033\[K' "$temporary/terminal" || fail "no progress on a terminal"
  grep -q $'\033\[1;33mwarning' "$temporary/terminal" || fail "no colour on a terminal"
  NO_COLOR=1 TERM=xterm script -qec "'$probe'" /dev/null >"$temporary/terminal" </dev/null
  grep -q $'\033\[1' "$temporary/terminal" && fail "colour in spite of NO_COLOR"
fi
checks=$((checks + 1))

# Standard input
run "$probe" -q --read - < <(printf 12345)
expect 0 out '^5 bytes$'
run "$probe" -q --read /no/such/file
expect 1 err '^probe: error: open /no/such/file: No such file or directory$'
run "$probe" -q --read "$temporary"
expect 1 err 'Is a directory'

# Standard output: every way of not arriving is noticed
run bash -c "'$probe' -q --lines 3 >/dev/full"
expect 1 err '^probe: error: write standard output: No space left on device$'
run bash -c "'$probe' -q --lines 1000000 >/dev/full"
expect 1 err 'No space left'
run bash -c "'$probe' -q --lines 3 >&-"
expect 1 err '^probe: error: write standard output: Bad file descriptor$'
run bash -c "'$probe' -q --help >/dev/full"
expect 1 err 'No space left'
run bash -c "'$probe' -q --read '$probe' >&- 2>&1 | wc -c"
expect 0
run bash -c "'$probe' --lines 3 2>&-"
expect 0 out '^line 2'
# A reader that leaves ends it quietly, by SIGPIPE
run bash -c "'$probe' -q --lines 1000000 | head -1; echo \"\${PIPESTATUS[0]}\""
expect 0 out '^line 0 $' out '^141$'
run bash -c "'$probe' --help | true; exit 0"
expect 0 err ''

# Signals: the first lets the step finish, then the program dies by it; the second leaves at once
signal_test() {
  local how=$1 signal=$2 times=$3 wanted=$4
  : >"$temporary/err"  # what the run before left would be taken for this one's
  "$probe" --wait "$how" >"$temporary/out" 2>"$temporary/err" &
  local child=$!
  for ((i = 0; i < 200; ++i)); do
    grep -q waiting "$temporary/err" && break
    sleep 0.05
  done
  kill "-$signal" "$child"
  if ((times > 1)); then
    for ((i = 0; i < 200; ++i)); do
      grep -q whole "$temporary/err" && break
      sleep 0.05
    done
    sleep 0.2
    kill "-$signal" "$child"
  fi
  status=0
  wait "$child" || status=$?
  # shellcheck disable=SC2034  # expect reads err by its name
  out=$(<"$temporary/out") err=$(<"$temporary/err") shown="$how with $times SIG$signal"
  expect "$wanted" err 'stopping as soon as everything is whole'
}
signal_test step INT 1 130
grep -q 'finished the step' <<<"$out" || fail "$shown: the step did not finish"
signal_test step TERM 1 143
grep -q 'finished the step' <<<"$out" || fail "$shown: the step did not finish"
signal_test throw TERM 1 143
[[ -z $out ]] || fail "$shown: went on after the stop"
start=$SECONDS
signal_test stubborn INT 2 130
((SECONDS - start < 20)) || fail "$shown: the second signal did not end it"

finish
