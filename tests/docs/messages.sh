#!/usr/bin/env bash
# shellcheck disable=SC2016  # the document's backquotes
# Each message that docs/troubleshooting.md quotes is one that a program really prints (tests/docs/provoke.sh makes the
# mistakes), or, where it is marked, one of the sources. Usage: messages.sh BIN-DIR SOURCE-DIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$1 source=$(realpath "$2")
document=$source/docs/troubleshooting.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

"$here/provoke.sh" "$bin" "$source" >"$work/printed"
# String literals, one a line; those that a line break parts are one.
find "$source/libcore" "$source/tools" \( -name '*.cc' -o -name '*.h' \) -print0 | xargs -0 cat |
  perl -0777 -pe 's/"\s*\n\s*"//g' | grep -oE '"([^"\\]|\\.)*"' | sed 's/\\"/"/g' >"$work/literals"

bad=0 printed=0 quoted=0
while IFS= read -r line; do
  place=$work/printed
  if [[ $line == *'** †' ]]; then place=$work/literals quoted=$((quoted + 1)); else printed=$((printed + 1)); fi
  message=${line#'**`'}
  message=${message%'`**'*}
  # In the sources a placeholder stands where the document has "…".
  pattern=$(sed -E 's/[][\\.*^$?+(){}|]/\\&/g; s/…/.*/g' <<<"$message")
  grep -qE -- "$pattern" "$place" || {
    echo "$document: $message: $([[ $place == */printed ]] && echo 'no program printed it' || echo 'not in the sources')"
    bad=1
  }
done < <(grep -E '^\*\*`.*`\*\*( †)?$' "$document")
stray=$(grep -cE '^\*\*`' "$document")
((stray == printed + quoted)) || { echo "$document: $stray messages, of which $((printed + quoted)) could be read"; bad=1; }
echo "$printed messages were printed, $quoted are in the sources"
((bad == 0 && printed >= 30))
