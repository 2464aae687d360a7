#!/usr/bin/env bash
# The numbers and plots of a full run, small enough for the tree: results.sh FROM TO.
set -euo pipefail
from=$1 to=$2
fail() {
  printf 'results.sh: error: %s\n  remedy: %s\n' "$1" "$2" >&2
  exit 1
}
documents=()
for target in memory throughput codecs precision quality motion; do [[ ! -s $from/$target.json ]] || documents+=("$from/$target.json"); done
((${#documents[@]})) || fail "$from has no TARGET.json" "make -C configs/experiments"
for document in "${documents[@]}"; do
  jq -e '.quick | not' "$document" >/dev/null || fail "$document is of the quick form" "make the target without QUICK=1"
done
mkdir -p "$to"
rm -f "$to"/*.jsonl "$to"/*.svg "$to"/*.md
# Traces and pictures of samples stay behind; a row keeps what its target's tables are made of.
for document in "${documents[@]}"; do
  jq -c '{target, title, date, machine, version, seconds}, (.rows[] | {id, kind, date, load, command, inputs, values} | if .load == null then del(.load) else . end)' "$document" >"$to/$(basename "$document" .json).jsonl"
done
cp "$from"/plots/*.svg "$to/"
{
  echo "# The full run"
  echo
  echo "Written by \`make -C configs/experiments results\`. Each TARGET.jsonl holds the target, then a row a command; the plots are SVG."
  echo
  echo "| target | date | machine | version |"
  echo "|---|---|---|---|"
  for document in "${documents[@]}"; do jq -r '"| \(.target) | \(.date) | \(.machine) | \(.version) |"' "$document"; done
  echo
  echo "## The paper's claims beside ours"
  echo
  cat "$from/claims.md"
  for document in "${documents[@]}"; do
    jq -r '"\n## \(.title)\n", (.text[] | . + "\n"), (.tables[] | "\n### \(.title)\n", "| \(.columns | join(" | ")) |", "|\(.columns | map("---") | join("|"))|", (.rows[] | "| \(join(" | ")) |"))' "$document"
    jq -r '(.charts | map("![\(.title // .name)](\(.name).svg)") | "\n" + join("\n"))' "$document"
  done
} >"$to/README.md"
echo "$to: $(du -sh "$to" | cut -f1)" >&2
