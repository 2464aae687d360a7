#!/usr/bin/env bash
# What the documents speak of is there: links, files of the tree, options, keys of a run, scripts and flags of the README's
# commands. And no line of docs/ is longer than 120 columns.
# Usage: references.sh BIN-DIR SOURCE-DIR
# shellcheck disable=SC2016  # backquotes of Markdown
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$(realpath "$1")
cd "$2"
export LC_ALL=C
bad=0 checked=0
complain() {
  echo "$*"
  bad=1
}
options=$(sed 's/\\//g' man/*.1.scd | grep -oE '\*--?[a-zA-Z][a-z0-9-]*' | tr -d '*' | sort -u)

for document in README.md docs/*.md; do
  folder=$(dirname "$document")
  while IFS= read -r link; do
    checked=$((checked + 1))
    [[ -e $folder/${link%%#*} ]] || complain "$document: $link: no such file"
  done < <(grep -oE '\]\([^)]+\)' "$document" | sed 's/^](//; s/)$//' | grep -v '://' || true)

  # Between backquotes, outside of blocks.
  while IFS= read -r word; do
    case $word in
      libcore/* | kernels/* | tests/* | scripts/* | configs/* | man/* | bench/* | tools/* | cmake/* | completions/*)
        [[ -e ${word%% *} ]] || complain "$document: $word: no such file"
        ;;
      -[-a-zA-Z]*)
        [[ $word == *'…'* || $word =~ ^-(low|high)\.yaml$ ]] || grep -qxFe "${word%%[ =]*}" <<<"$options" || complain "$document: $word: no page has such an option"
        ;;
      *)
        [[ $word =~ ^(--set )?((model|data|train|optimizer|stream|sample|output)\.[a-z0-9_.]+)([:=].*|\ .*)?$ ]] || continue
        key=${BASH_REMATCH[2]}
        [[ $key =~ \.(yaml|jsonl|md|svg)$ ]] && continue
        grep -qF "*${key%.}* (" man/megaslide-config.5.scd || complain "$document: $key: megaslide-config(5) has no such key"
        ;;
    esac
    checked=$((checked + 1))
  done < <(awk '/^```/ {inside = !inside; next} !inside' "$document" | grep -oE '`[^`]+`' | tr -d '`' | sort -u)
done

for document in docs/*.md; do
  columns=$(LC_ALL=C.UTF-8 wc -L <"$document")
  ((columns <= 120)) || complain "$document: a line of $columns columns"
done

# The README's commands: flags, scripts and files.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk -v folder="$work" -f "$here/blocks.awk" README.md
for block in "$work"/*.sh; do
  "$here/flags.sh" "$block" "$bin" . || complain "README.md:$(<"${block%.sh}.line"): see above"
  checked=$((checked + 1))
done
echo "$checked references checked"
((checked > 100)) || complain "that is too few"
exit "$bad"
