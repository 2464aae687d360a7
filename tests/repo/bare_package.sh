#!/usr/bin/env bash
# Proves that the Debian package is whole: makes it in one bare Debian, installs it in a second one that has nothing to build
# with, and uses it there. On demand the first one shows scripts/demo and scripts/test as well. Not part of CI: it needs root,
# debootstrap, a Debian mirror and 8 GiB.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: tests/repo/bare_package.sh [--demo STEPS] [--test] SUITE DIR

  SUITE         bookworm, trixie, or Ubuntu's noble
  DIR           where the two roots lie: DIR/build is kept for the next run, DIR/install made anew
  --demo STEPS  before the package, scripts/demo with so many steps (800 is what it does by itself)
  --test        before the package, scripts/test

The variables of bare_root.sh apply. The package is left in DIR.
TEXT
}
steps="" suite_too=no
while (($#)); do
  case $1 in
    --demo) steps=${2:?--demo needs a number}; shift 2 ;;
    --test) suite_too=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) break ;;
  esac
done
(($# == 2)) || { usage >&2; exit 2; }
suite=$1 dir=$2
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

# One clone for all of it: what the first command builds the next ones find, as a stranger's would.
commands=()
[[ -z $steps ]] || commands+=("scripts/demo --steps $steps")
[[ $suite_too == no ]] || commands+=(scripts/test)
commands+=("scripts/package --lint")
script="set -e"
for command in "${commands[@]}"; do
  script+=$'\n'"echo '== $command' >&2; begin=\$SECONDS; $command; echo \"== $command: \$((SECONDS - begin)) s\" >&2"
done
"$here/bare_root.sh" "$suite" "$dir/build" bash -c "$script"
rm -f "$dir"/megaslide_*.deb
cp "$dir"/build/src/megaslide/dist/megaslide_*.deb "$dir/"

if [[ -e $dir/install ]]; then
  ! grep -qF " $dir/install/" /proc/mounts || { echo "bare_package.sh: error: something is mounted under $dir/install" >&2; exit 1; }
  rm -rf --one-file-system "${dir:?}/install"
fi
"$here/bare_root.sh" "$suite" "$dir/install" true
mkdir -p "$dir/install/package"
cp "$dir"/megaslide_*.deb "$dir/install/package/"
"$here/bare_root.sh" "$suite" "$dir/install" bash tests/repo/use_package.sh /package
