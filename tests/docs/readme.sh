#!/usr/bin/env bash
# The README's commands on the tiny model run as they stand, with a run.yaml that is as short as can be.
# Usage: readme.sh BIN-DIR SOURCE-DIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$1 source=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

awk -v folder="$work" -f "$here/blocks.awk" "$source/README.md"
block=$(grep -l '^shard-weights --init tiny ' "$work"/*.sh)
{
  cat <<'MARKDOWN'
```sh
cat >run.yaml <<'YAML'
model: {path: model}
data: {cache: cache}
train: {max_train_steps: 2}
output: {output_dir: run}
YAML
```

```sh
MARKDOWN
  cat "$block"
  echo '```'
} >"$work/README.md"
"$here/run.sh" "$work/README.md" "$bin" "$source"
