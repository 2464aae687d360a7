#!/usr/bin/env bash
# The commands of a block that cannot run here: each program exists, --help lists each flag, megaslide-config(5) each key of
# --set, and files of the source tree are there.
# Usage: flags.sh BLOCK.sh BIN-DIR SOURCE-DIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../cli/lib_flags.sh"
block=$1 bin=$2 tree=$3
bad=0 commands=0
complain() {
  echo "$*"
  bad=1
}

check() {
  local program=$1 word
  shift
  commands=$((commands + 1))
  case $program in
    scripts/*)
      [[ -x $tree/$program ]] || complain "$program: no such script"
      for word; do
        [[ $word != --* ]] || "$tree/$program" --help | grep -qe "$word" || complain "$program --help does not list $word"
      done
      return
      ;;
    cd | cp | export | git | ln | mkdir | tail) return ;;
    *) [[ -x $bin/$program ]] || { complain "$program: no such program"; return; } ;;
  esac
  local flags
  flags=$(help_flags "$bin/$program")
  while (($#)); do
    word=$1
    shift
    if [[ $word == -[a-zA-Z-]* ]] && ! grep -qxFe "${word%%=*}" <<<"$flags"; then complain "$program --help does not list $word"; fi
    if [[ $word == --set && $# -gt 0 ]]; then
      grep -qF "*${1%%=*}* (" "$tree/man/megaslide-config.5.scd" || complain "$program --set $1: megaslide-config(5) has no such key"
    fi
    if [[ $word == configs/* ]]; then [[ -e $tree/$word ]] || complain "$word: no such file"; fi
  done
}

# xargs takes quoted words as the shell does, and runs nothing.
while IFS= read -r line; do
  [[ -n $line && $line != \#* ]] || continue
  case $line in *[\`\;\|\&\<\>]*) complain "$line: only plain commands can be checked"; continue ;; esac
  mapfile -t words < <(xargs printf '%s\n' <<<"${line%% #*}")
  check "${words[@]}"
done < <(sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' "$block")
((commands)) || complain "$block: no commands"
exit "$bad"
