#!/usr/bin/env bash
# --help, the man page and the completion of a program know the same options, and the page has its sections in order.
# Usage: help_man.sh BIN PAGE.scd COMPLETION.bash
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/lib.sh"
source "$here/lib_flags.sh"
bin=$1 page=$2 completion=$3
name=$(basename "$bin")

in_help=$(
  help_flags "$bin"
  for command in $(commands "$bin"); do help_flags "$bin" "$command"; done
)
in_help=$(LC_ALL=C sort -u <<<"$in_help")
in_page=$(page_flags "$page")
(($(wc -l <<<"$in_help") >= 8)) || fail "only these options were found in --help: $in_help"
difference=$(diff <(echo "$in_help") <(echo "$in_page")) || fail "--help (<) and $page (>) differ:"$'\n'"$difference"
checks=$((checks + 1))

for command in $(commands "$bin"); do grep -q "\*$command\*" "$page" || fail "$page lacks the command $command"; done

sections=$(grep -E '^# ' "$page" | cut -c3- | tr '\n' ';')
[[ $sections == 'NAME;SYNOPSIS;DESCRIPTION;OPTIONS;OUTPUT;EXIT STATUS;SIGNALS;EXAMPLES;SEE ALSO;' ]] || fail "$page: sections are $sections"
if command -v scdoc >/dev/null; then scdoc <"$page" >/dev/null || fail "$page: scdoc refuses it"; fi

# What TAB offers for an option is what --help lists.
offered=$(
  source "$completion"
  PATH=$(dirname "$bin"):$PATH
  COMP_WORDS=("$name" -) COMP_CWORD=1 COMPREPLY=()
  _megaslide "$name" - "$name"
  printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort -u
)
difference=$(diff <(help_flags "$bin") <(echo "$offered")) || fail "--help (<) and completion (>) differ:"$'\n'"$difference"
offered=$(
  source "$completion"
  PATH=$(dirname "$bin"):$PATH
  COMP_WORDS=("$name" --progress a) COMP_CWORD=2 COMPREPLY=()
  _megaslide "$name" a --progress
  printf '%s\n' "${COMPREPLY[@]}"
)
[[ $offered == $'auto\nalways' ]] || fail "completion of --progress a: $offered"
complete -p >/dev/null 2>&1
grep -qE "complete .*\b$name\b" "$completion" || fail "$completion does not complete $name"

# Common to all programs
run "$bin" --version
expect 0 out "^$name \(MegaSlide\) [0-9]" out '^libraries: fmt [0-9]+\.[0-9.]+, CLI11 [0-9]' err ''
if grep -q 'Where to compute' <("$bin" --help); then
  expect 0 out '^devices: cpu' out '^instructions: (avx512|avx2|baseline) vectors, (amx|avx512_bf16|no) tiles, oneDNN [a-z0-9_]+$'
fi
run "$bin" --no-such-option
expect 2 out '' err "^$name: error: unknown option '--no-such-option'"
run "$bin" --progress sometimes
expect 2 out '' err 'expected one of auto, always, never'
run bash -c "'$bin' --help | head -1; exit \${PIPESTATUS[1]}"
expect 0 out '^Usage' err ''
run bash -c "'$bin' --help >/dev/full"
expect 1 err 'No space left on device'
finish
