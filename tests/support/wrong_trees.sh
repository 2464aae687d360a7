# shellcheck shell=bash
# For a check of the tree that must find what it is there for: small trees, one rule each. Source it with the check as its
# argument, call expect for each tree, and end with end_of_trees.
check=${1:?a check}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect good|bad FILE LINE...: what the check says of a tree with that file.
expect() {
  local verdict=$1 file=$2 result=good
  shift 2
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/$(dirname "$file")" "$tree/libcore/base"
  echo '#pragma once' >"$tree/libcore/base/empty.h"
  printf '%s\n' "$@" >"$tree/$file"
  "$check" "$tree" >/dev/null 2>&1 || result=bad
  if [[ $result != "$verdict" ]]; then
    echo "FAILED: $file: '$*' was taken as $result"
    failures=$((failures + 1))
  fi
}

# end_of_trees MESSAGE
end_of_trees() {
  ((failures == 0)) && echo "$1"
  exit $((failures > 0))
}
