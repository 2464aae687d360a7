#!/usr/bin/env bash
# Rows of an earlier full run, from the tree to where targets look for theirs, so that only what is missing or has changed is made:
# restore.sh RESULTS OUT [TARGET...]. Rows that are there stay.
set -euo pipefail
results=$1 out=$2
shift 2
(($#)) || set -- memory throughput codecs precision quality motion
for target; do
  [[ -s $results/$target.jsonl ]] || continue
  rows=$out/$target/rows count=0
  mkdir -p "$rows"
  while IFS= read -r row; do
    id=$(jq -r .id <<<"$row")
    [[ ! -s $rows/$id.json ]] || continue
    printf '%s\n' "$row" >"$rows/$id.json.new"
    mv "$rows/$id.json.new" "$rows/$id.json"
    count=$((count + 1))
  done < <(jq -c 'select(has("id"))' "$results/$target.jsonl")
  echo "$target: $count rows of $results" >&2
done
