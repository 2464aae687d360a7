#!/usr/bin/env bash
# Runs the ```sh blocks of a document from top to bottom, in one shell, in a scratch folder that looks like a clone with a
# release build, and compares what they print with the ```text blocks that stand below them.
# Usage: run.sh DOCUMENT BIN-DIR SOURCE-DIR
#
# In a document
#   # needs: ...         as the first line of a block: it cannot run here; only its programs, flags, keys and files are checked
#   COMMAND  # exit 3    this command ends so; all others succeed
#   ```text              the standard output, exactly but for runs of blanks; ... alone on a line: lines that are left out;
#                        … in a line: what is left out there
#   ```text stderr       the standard error
#   ```text varies       figures of one machine: words are compared, numbers with their units are not
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
document=$(realpath "$1") bin=$(realpath "$2") source=$(realpath "$3")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

mkdir -p "$work/blocks" "$work/clone/build/release"
ln -s "$bin" "$work/clone/build/release/bin"
for entry in "$source"/*; do
  case ${entry##*/} in
    build | demo | tutorial) ;;
    *) ln -s "$entry" "$work/clone/" ;;
  esac
done
awk -v folder="$work/blocks" -f "$here/blocks.awk" "$document"

# One script of all blocks that can run: set -e is off in a function that an || follows, so no loop runs them.
script=$work/script
printf 'set -euo pipefail\nstatus=0\ncd "%s"\n' "$work/clone" >"$script"
runnable=0 checked=0
for block in "$work"/blocks/*.sh; do
  [[ -f $block ]] || { echo "$document: no blocks"; exit 1; }
  if [[ $(head -n 1 "$block") == '# needs: '* ]]; then
    "$here/flags.sh" "$block" "$bin" "$source" || { echo "$document:$(<"${block%.sh}.line"): see above"; exit 1; }
    checked=$((checked + 1))
    continue
  fi
  runnable=$((runnable + 1))
  {
    printf 'echo "%s" >"%s"\nexec >"%s" 2>"%s" </dev/null\n' "${block%.sh}" "$work/current" "${block%.sh}.out" "${block%.sh}.err"
    # shellcheck disable=SC2016  # for the script, not for this one
    sed -E 's/^(.*[^ ]) *# exit ([0-9]+)$/\1 || status=$?; [[ $status == \2 ]] || { echo "exit $status, expected \2" >\&2; exit 1; }; status=0/' "$block"
  } >>"$script"
done
if ((runnable)); then
  status=0
  PATH=$bin:$PATH bash "$script" || status=$?
  if ((status)); then
    block=$(<"$work/current")
    echo "$document:$(<"$block.line"): exit $status"
    cat "$block.sh"
    tail -n 20 "$block.out" "$block.err"
    exit 1
  fi
fi

# What belongs to one machine or to one moment: the memory of the process itself, in each plan.
settle() { sed -E 's/^( *(program, libraries, data|total) ).*/\1/; s/^( *host memory: [^(]*)\([0-9]+ bytes\)/\1/; s/[[:space:]]+/ /g; s/ $//'; }
without_numbers() { sed -E 's/\b[0-9a-f]{12,}\b/#/g; s/[0-9][0-9.:e+-]*( ?([kMGT]i?)?B\b)?/#/g'; }
compared=0
for text in "$work"/blocks/*.text; do
  [[ -f $text && -f ${text%.text}.out ]] || continue
  how=$(<"${text%.text}.how")
  printed=${text%.text}.out
  if [[ $how == stderr ]]; then printed=${text%.text}.err; fi
  wanted=$(settle <"$text") got=$(settle <"$printed")
  if [[ $how == varies ]]; then wanted=$(without_numbers <<<"$wanted") got=$(without_numbers <<<"$got"); fi
  pattern=$(sed -E 's/[][\\*?]/\\&/g; s/^\.\.\.$/*/; s/…/*/g' <<<"$wanted")
  # shellcheck disable=SC2053  # a pattern on purpose
  if [[ $got != $pattern ]]; then
    echo "$document:$(<"${text%.text}.line"): what is printed (>) is not what the document shows (<)"
    diff <(echo "$wanted") <(echo "$got") || true
    exit 1
  fi
  compared=$((compared + 1))
done
echo "$runnable blocks ran, $compared outputs compared, flags of $checked blocks checked"
((runnable + checked > 0))
