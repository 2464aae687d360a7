#!/usr/bin/env bash
# A program finds its presets beside itself, wherever it has been installed, and says so where there are none.
# Usage: installed.sh PROBE SOURCE-DIR COMPLETION.bash
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
probe=$1 source=$2 completion=$3
presets=$(find "$source/configs/models" -name '*.yaml' | wc -l)

place="$temporary/a place with blanks"
mkdir -p "$place/bin" "$place/share/megaslide"
cp "$probe" "$place/bin/probe"
run "$place/bin/probe" -q --json
expect 0 out '"presets": 0'
cp -r "$source/configs" "$place/share/megaslide/configs"
run "$place/bin/probe" -q --json
expect 0 out "\"presets\": $presets\}"
ln -s "$place/bin/probe" "$temporary/link"
run "$temporary/link" -q --json
expect 0 out "\"presets\": $presets\}"

# The completion offers them as well.
offered=$(
  source "$completion"
  PATH="$place/bin:$PATH"
  _megaslide_presets probe models
)
[[ $(wc -l <<<"$offered") == "$presets" ]] || fail "completion offers: $offered"
grep -qx tiny <<<"$offered" || fail "completion lacks tiny: $offered"
finish
