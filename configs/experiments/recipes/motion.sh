#!/usr/bin/env bash
# The experiment of motion/: what attention gains from following motion. Its own Makefile runs it; its report comes along.
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder=$WORK/runs
arguments=(BIN="$BIN" OUT="$PWD/$folder")
[[ $OUT != /* ]] || arguments=(BIN="$BIN" OUT="$folder")
# The quick form has the least that makes every kind of row.
if quick; then arguments+=(SEEDS=1 STEPS=8 EVERY=4 WARMUP=2 CLIPS=40 HELD_OUT=2 PROMPTS=2 "VARIANTS=zero-377 zero-333 full-motion dense"); fi
say "make -C $HERE/motion"
# Of a make around this one nothing is taken over: it would hand down its jobs, and variables that mean something else there.
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u CLIPS -u DATA -u QUICK -u WEIGHTS make --no-print-directory -C "$HERE/motion" "${arguments[@]}" JOBS=2 >&2
[[ -s $folder/report.md ]] || fail "$folder has no report.md"
cp "$folder/curves.svg" "$WORK/curves.svg"
if begin report make -C "$HERE/motion" "${arguments[@]:2}" "$(sha256sum "$folder/report.md" | cut -c1-8)"; then
  jq -Rs -f "$HERE/recipes/markdown.jq" "$folder/report.md" | keep measured
fi
finish "Motion: what attention gains from following it" <<'JQ'
{
  text: ["Small models that differ in their attention alone, on clips whose motion is known: configs/experiments/motion/README.md says what is measured and what longer runs showed."],
  charts: [{kind: "svg", name: "motion-curves", title: "Held-out loss while training, and final loss against the cost of attention", file: "\($work)/curves.svg"}],
  tables: (row("report").values.tables // [])
} | document
JQ
