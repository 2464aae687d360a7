#!/usr/bin/env bash
# What a power cut would leave: the order of the calls of a run that checkpoints must put everything on the disk before what
# depends on it. And that order is checked by taking each sync out of the record.
#   write_order.sh BIN-DIR SOURCE-DIR SHIM
set -uo pipefail
source "$(dirname "$0")/lib.sh"
prepare "$@"
mkdir "$work/disk"
run=$work/disk/runs/one
with_fault "$work/disk" 0 kill "FAULT_LOG=$work/calls"
train "$run" stop
[[ $status == 0 ]] || { echo "the run: $stderr"; exit 1; }

# Prints each breach. A file is dirty from its creation or a write to its sync, an entry of a folder from its change to the
# folder's sync.
breaches() { # breaches CALLS
  awk -v run="$run" '
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    function wants_file(path, why) { if (path in dirty) print NR ": " why ": " path " is not on the disk" }
    function wants_folder(path, why) { if (path in changed) print NR ": " why ": entries of " path " are not on the disk" }
    function wants_all_under(path, why,  p) {
      for (p in dirty) if (index(p, path "/") == 1) wants_file(p, why)
      for (p in changed) if (p == path || index(p, path "/") == 1) wants_folder(p, why)
    }
    { call = $2; path = $3; from = $4; checkpoints = run "/checkpoints" }
    call ~ /^(write|writev|pwrite|ftruncate)/ { dirty[path] = 1 }
    # A lock holds nothing, and a line of metrics counts from the sync that a checkpoint makes.
    call ~ /^open/ && path !~ /(\.lock|metrics\.jsonl)$/ && !(path in seen) && path ~ /\.(safetensors|json)$|\.tmp-[0-9]+$/ { seen[path] = dirty[path] = changed[folder(path)] = 1 }
    call ~ /^(fsync|fdatasync)$/ { delete dirty[path]; delete changed[path] }
    call == "mkdir" { changed[folder(path)] = 1; made++ }
    call ~ /^symlink/ { changed[folder(path)] = 1 }
    call ~ /^rename/ {
      if (path ~ /\/step-[0-9]+$/) {
        wants_all_under(from, "a checkpoint gets its name")
        wants_file(run "/metrics.jsonl", "a checkpoint gets its name")
        checkpoints_named++
      } else if (path ~ /\/latest$/) wants_folder(checkpoints, "latest moves")
      else if (path ~ /\/step-[0-9]+\.tmp$/) { wants_folder(run, "an old checkpoint goes"); removed++ }
      else wants_file(from, "a file gets its name")
      changed[folder(path)] = changed[folder(from)] = 1
      if (path ~ /\/step-[0-9]+\.tmp$/) delete changed[folder(path)]  # may come back whole
      for (p in changed) if (p == from || index(p, from "/") == 1) delete changed[p]
    }
    END {
      wants_folder(run, "the end")
      wants_folder(checkpoints, "the end")
      for (p in changed) if (index(run, p "/") == 1) wants_folder(p, "the end")
      if (checkpoints_named != 4 || removed != 2 || made < 4) print "the record is of " checkpoints_named " checkpoints, " removed " removals, " made " folders"
    }' "$1"
}
checks=$((checks + 1))
found=$(breaches "$work/calls")
[[ -z $found ]] || fail "$found"

# Only what nothing depends on may go without: the loss curve's place in the output folder.
grep -nE ' f(data)?sync ' "$work/calls" | cut -d: -f1 >"$work/syncs"
unneeded=0
while read -r line; do
  checks=$((checks + 1))
  sed "${line}d" "$work/calls" >"$work/without"
  [[ -n $(breaches "$work/without") ]] || { unneeded=$((unneeded + 1)); sed -n "${line}p" "$work/calls" >>"$work/unneeded"; }
done <"$work/syncs"
total=$(wc -l <"$work/syncs")
echo "$total syncs, $unneeded without which the order still holds"
[[ ! -e $work/unneeded ]] || ! grep -v " $run$" "$work/unneeded" || fail "the order holds without these"
finish
