#!/usr/bin/env bash
# Checkpoints that cannot be read, or are not what was written: a run says which file, goes on from an older one that is
# whole, and ends where an undisturbed run does; asked for a damaged one by name it offers the older one.
#   read_faults.sh BIN-DIR SOURCE-DIR SHIM
# MEGASLIDE_FAULTS=all: every read call, and every byte of the manifest.
set -uo pipefail
source "$(dirname "$0")/lib.sh"
prepare "$@"

record_calls FAULT_CALLS=reads

faulty_read() { # faulty_read NUMBER CALL PATH ACTION
  local what="$4 at call $1, $2 $3"
  restart_at 2
  with_fault "$out" "$1" "$4" FAULT_CALLS=reads
  train "$out" stop
  cases=$((cases + 1)) checks=$((checks + 1))
  if [[ $4 == short ]]; then
    [[ $status == 0 && -z $stderr ]] || fail "$what: exit $status: $stderr"
  elif [[ $status == 1 ]]; then
    grep -q '^finetune: error: ' <<<"$stderr" && grep -qF 'Input/output error' <<<"$stderr" && grep -q 'remedy: ' <<<"$stderr" || fail "$what: says $stderr"
    grep -qF "$(dirname "$3")" <<<"$stderr" || fail "$what: names no path of it: $stderr"
  elif [[ $status != 0 ]]; then
    fail "$what: exit $status: $stderr"
  fi
  [[ $status != 0 || $(hash_in "$stdout") == "$expected" ]] || fail "$what: ended in another state"
  check_checkpoints "$what"
  check_resumed "$what"
}
cases=0
[[ ${MEGASLIDE_FAULTS:-} == all ]] && cp "$work/calls" "$work/chosen" || sed -E 's/tmp-[0-9]+/tmp-N/' "$work/calls" | awk '!seen[$2 $3]++' >"$work/chosen"
while read -r number call path _; do
  faulty_read "$number" "$call" "$path" EIO
  [[ $call == read || $call == pread* ]] && faulty_read "$number" "$call" "$path" short
done <"$work/chosen"
echo "$cases faults among $(wc -l <"$work/calls") calls"
((cases >= 20)) || fail "only $cases faults"

flip() { # flip FILE OFFSET: the lowest bit of a byte
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1")
  printf '%b' "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
newest=$out/checkpoints/step-00000002
older=$out/checkpoints/step-00000001

# damaged WHAT FILE: what was done to FILE of the newest checkpoint is seen, and the older one taken.
damaged() {
  checks=$((checks + 1))
  without_fault
  train "$out" stop
  [[ $status == 0 ]] || fail "$1: exit $status: $stderr"
  grep -qF "finetune: warning: " <<<"$stderr" && grep -qF "$2" <<<"$stderr" || fail "$1: is not named: $stderr"
  grep -qF "going on from $older, the newest checkpoint that is whole" <<<"$stderr" || fail "$1: says not where it goes on: $stderr"
  [[ $(hash_in "$stdout") == "$expected" ]] || fail "$1: ended in another state"
  check_resumed "$1"
}
for file in embed.safetensors layer-000.safetensors head.safetensors manifest.json; do
  bytes=$(stat -c %s "$work/whole/checkpoints/step-00000002/$file")
  # The first byte, the header, its end, the first and the last data.
  for offset in 0 9 $((bytes / 7)) 4095 4096 $((bytes / 2)) $((bytes - 1)); do
    ((offset < bytes)) || continue
    restart_at 2
    flip "$newest/$file" "$offset"
    # The white space after the manifest carries nothing.
    [[ $file == manifest.json && $offset == $((bytes - 1)) ]] || damaged "bit of byte $offset of $file" "$file"
  done
  for size in 0 7 $((bytes / 2)) $((bytes - 1)); do
    [[ $file == manifest.json && $size == $((bytes - 1)) ]] && continue
    restart_at 2
    truncate -s "$size" "$newest/$file"
    damaged "$file cut to $size bytes" "$file"
  done
  restart_at 2
  echo "more" >>"$newest/$file"
  damaged "$file with more at its end" "$file"
  restart_at 2
  rm "$newest/$file"
  damaged "$file gone" "$file"
  restart_at 2
  rm "$newest/$file"
  mkdir "$newest/$file"
  damaged "$file a folder" "$file"
done
if [[ ${MEGASLIDE_FAULTS:-} == all ]]; then
  # Whatever byte of the manifest is another, the run ends in the same state or refuses.
  for ((offset = 0; offset < $(stat -c %s "$work/whole/checkpoints/step-00000002/manifest.json"); ++offset)); do
    restart_at 2
    flip "$newest/manifest.json" "$offset"
    train "$out" stop
    checks=$((checks + 1))
    [[ $status != 0 || $(hash_in "$stdout") == "$expected" ]] || fail "bit of byte $offset of manifest.json: ended in another state"
    ((status <= 2)) || fail "bit of byte $offset of manifest.json: exit $status: $stderr"
  done
fi

# A file that is cut short while it is mapped, as one on a bad disk, cannot be read: the message says which.
for folder in "$work/cache" "$out"; do
  restart_at 2
  cp -r "$folder" "$work/kept"
  with_fault "$folder" 0 kill "FAULT_LOG=$work/mapped" FAULT_CALLS=reads
  train "$out" stop
  while read -r number _ path; do
    restart_at 2
    with_fault "$folder" "$number" shrink FAULT_CALLS=reads
    train "$out" stop
    checks=$((checks + 1))
    [[ $status == 1 ]] && grep -qF "finetune: error: read $path: " <<<"$stderr" && grep -q 'remedy: ' <<<"$stderr" || fail "$path cut short in use: exit $status: $stderr"
    rm -rf "$folder"
    cp -r "$work/kept" "$folder"
    check_checkpoints "$path cut short in use"
    check_resumed "$path cut short in use"
  done < <(awk '$2 == "mmap" && !seen[$3]++' "$work/mapped")
  rm -rf "$work/kept" "$work/mapped"
done

# Asked for by name, a damaged checkpoint is refused, and the older one offered.
restart_at 2
flip "$newest/layer-000.safetensors" 5000
train "$out" stop --resume "$newest"
checks=$((checks + 1))
[[ $status == 1 ]] && grep -qF "layer-000.safetensors: content differs" <<<"$stderr" && grep -qF "remedy: resume from an older one: --resume $older" <<<"$stderr" ||
  fail "a damaged checkpoint by name: exit $status: $stderr"
# With none whole nothing is begun anew, and nothing is removed.
flip "$older/head.safetensors" 5000
train "$out" stop
checks=$((checks + 1))
[[ $status == 1 ]] && grep -qF "head.safetensors" <<<"$stderr" && grep -q 'remedy: no checkpoint of this run is whole' <<<"$stderr" || fail "none whole: exit $status: $stderr"
[[ -e $newest/manifest.json && -e $older/manifest.json ]] || fail "none whole: one was removed"
# A link that leads nowhere, and none.
for link in checkpoints/step-00000007 ""; do
  restart_at 2
  rm "$out/latest"
  [[ -z $link ]] || ln -s "$link" "$out/latest"
  train "$out" stop
  checks=$((checks + 1))
  [[ $status == 0 && $(hash_in "$stdout") == "$expected" ]] || fail "latest is '$link': exit $status: $stderr"
  check_resumed "latest is '$link'"
done
finish
