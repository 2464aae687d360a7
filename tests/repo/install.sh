#!/usr/bin/env bash
# `cmake --install` into a folder, with and without DESTDIR; then everything is moved elsewhere, and works from there:
# programs, presets, the video module, manual pages, completions. No installed file names a folder of this machine.
# Usage: install.sh SOURCE-DIR BUILD-DIR [SANITIZERS]
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
source_dir=$1 build=$2 sanitizers=${3:-}
programs=(shard-weights encode-clips plan-memory finetune sample-video bench-dsa eval-vbench)

run env DESTDIR="$temporary/staged" cmake --install "$build" --prefix /opt/megaslide
expect 0
run cmake --install "$build" --prefix "$temporary/first"
expect 0
run diff <(cd "$temporary/first" && find . | sort) <(cd "$temporary/staged/opt/megaslide" && find . | sort)
expect 0 out ''

# From now on only a copy that was moved, in a folder with blanks, seen from an unrelated one.
prefix="$temporary/moved here/megaslide"
mkdir -p "$temporary/moved here" "$temporary/elsewhere"
mv "$temporary/first" "$prefix"
cd "$temporary/elsewhere" || exit 1

while IFS= read -r -d '' file; do
  # AddressSanitizer keeps the names of source files for its reports.
  [[ -z $sanitizers ]] || continue
  for folder in "$source_dir" "$build" "$temporary"; do
    grep -qF -- "$folder" "$file" && fail "$file names $folder"
  done
  checks=$((checks + 1))
done < <(find "$prefix" -type f -print0)
files=$(find "$prefix" -type f | wc -l)
((files > 40)) || fail "only $files files are installed"

# The version that the changelog's first heading names.
version=$(sed -n 's/^## \([0-9.]*\).*/\1/p' "$source_dir/CHANGELOG.md" | head -1)
for program in "${programs[@]}"; do
  run "$prefix/bin/$program" --version
  expect 0 out "^$program \(MegaSlide\) ${version//./\\.}\$" err ''
  [[ -s $prefix/share/man/man1/$program.1 ]] || ! command -v scdoc >/dev/null || fail "no manual page of $program"
done
for file in doc/megaslide/LICENSE doc/megaslide/THIRD-PARTY.md megaslide/configs/train/finetune.yaml \
  megaslide/configs/clip/bpe_simple_vocab_16e6.txt.gz; do
  [[ -s $prefix/share/$file ]] || fail "no $file"
done
run find "$prefix/share/megaslide" -name '*.cc' -o -name CMakeLists.txt -o -type d -empty
expect 0 out ''

run "$prefix/bin/shard-weights" --init tiny -o model --seed 1
expect 0
run "$prefix/bin/plan-memory" --model wan2.1-t2v-14b --machine h200-1.5tb --num-frames 5 --size 832x480 --json
expect 0 out '"fits": ?true'
run "$prefix/bin/encode-clips" "$source_dir/tests/data/clips/tree.mp4" -o cache --model model --num-frames 9 --size 64x64 --fps 8 --json
expect 0 out '"kept": ?1'
run "$prefix/bin/encode-clips" --version
expect 0 out '^video: FFmpeg [0-9]'
# Without the module a program says so, and still tells its version.
mv "$prefix/lib" "$prefix/no-lib"
run "$prefix/bin/encode-clips" --version
expect 0 out '^video: FFmpeg none: the video module is missing$' err ''
run "$prefix/bin/encode-clips" "$source_dir/tests/data/clips/tree.mp4" -o cache2 --model model --num-frames 9 --size 64x64 --fps 8 --json
expect 1 out 'the video module is missing; looked for '
mv "$prefix/no-lib" "$prefix/lib"

if command -v man >/dev/null && [[ -d $prefix/share/man ]]; then
  run env MANPATH="$prefix/share/man" MANWIDTH=80 man -P cat finetune
  expect 0 out '^NAME'
  run env MANPATH="$prefix/share/man" MANWIDTH=80 man -P cat 5 megaslide-config
  expect 0 out '^NAME'
fi

# Completions as the shells find and call them.
for program in "${programs[@]}"; do
  bash -n "$prefix/share/bash-completion/completions/$program" || fail "the bash completion of $program does not parse"
  checks=$((checks + 1))
done
bash_words() {  # WORD... of a command line whose last one is completed
  # shellcheck disable=SC2016  # expanded by the inner shell
  PATH="$prefix/bin:$PATH" bash --norc -c '
    source "$1"
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
    specification=$(complete -p "$1") || exit 1
    function=${specification##*-F } function=${function%% *}
    "$function" "$1" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf "%s\n" "${COMPREPLY[@]}"' bash "$prefix/share/bash-completion/completions/$1" "$@"
}
run bash_words finetune --resu
expect 0 out '^--resume$' err ''
run bash_words shard-weights --init tin
expect 0 out '^tiny$' err ''
run bash_words plan-memory --machine h200
expect 0 out '^h200-1\.5tb$' err ''
if command -v fish >/dev/null; then
  run env HOME="$temporary" XDG_DATA_DIRS="$prefix/share:/usr/share" PATH="$prefix/bin:$PATH" \
    fish -c 'complete -C "finetune --resu"; complete -C "shard-weights --init tin"; complete -C "eval-vbench comp"'
  expect 0 out '^--resume' out '^tiny' out '^compare' err ''
else
  echo "fish is not here: its completion is not tried"
fi
if command -v zsh >/dev/null; then
  run zsh -n "$prefix/share/zsh/site-functions/_megaslide"
  expect 0
else
  echo "zsh is not here: its completion is not parsed"
fi
finish
