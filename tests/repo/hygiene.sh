#!/usr/bin/env bash
# What must not be in the tree: large files, marks of unfinished work, paths of one person's machine, temporary files
# whose names tests could share.
set -euo pipefail
cd "${1:?usage: hygiene.sh SOURCE-DIR}"

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
  list() { git -c safe.directory='*' ls-files -z; }
else
  list() { find . \( -path ./build -o -path ./demo -o -path ./dist -o -path ./.git \) -prune -o -type f -printf '%P\0'; }
fi
bad=0
complain() { echo "$*"; bad=1; }

files=0
while IFS= read -r -d '' file; do
  [[ -f $file ]] || continue
  files=$((files + 1))
  (($(stat -c %s "$file") <= 4 * 1024 * 1024)) || complain "$file: larger than 4 MiB"
done < <(list)
((files > 20)) || complain "only $files files found: is this the source tree?"

text() { list | grep -zv -e '^tests/data/' -e '^tests/repo/hygiene\.sh$'; }
# xargs answers 123 where grep found nothing.
marks=$(text | xargs -0 grep -InE '\b(TODO|FIXME|XXX|HACK)\b' -- 2>/dev/null || true)
[[ -z $marks ]] || complain "marks of unfinished work:"$'\n'"$marks"
paths=$(text | xargs -0 grep -InE "(^|[[:space:]\"'=(])/(home|work|root|Users|mnt)/[a-zA-Z0-9]" -- 2>/dev/null || true)
[[ -z $paths ]] || complain "paths of one machine:"$'\n'"$paths"
# Tests run side by side: a fixed name under a common folder is a race between two of them.
shared=$(text | grep -z '^tests/.*\.\(cc\|h\)$' | grep -zv -e '^tests/support/temporary_folder\.h$' -e '^tests/cases/main\.cc$' |
  xargs -0 grep -InE 'TempDir\(\)|temp_directory_path|"/tmp/' -- 2>/dev/null | grep -v 'output_dir' || true)
[[ -z $shared ]] || complain "temporary files without tests/support/temporary_folder.h:"$'\n'"$shared"

((bad)) || echo "$files files, nothing to complain about"
exit "$bad"
