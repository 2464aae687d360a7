#!/usr/bin/env bash
# Proves that the Debian package is whole: makes it in one bare Debian, installs it in a second one that has nothing to build
# with, and uses it there. Not part of CI: it needs root, debootstrap, a Debian mirror and 6 GiB.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: tests/repo/bare_package.sh SUITE DIR

  SUITE  bookworm or trixie (debootstrap must know it)
  DIR    where the two roots lie: DIR/build is kept for the next run, DIR/install made anew

The variables of bare_root.sh apply. The package is left in DIR.
TEXT
}
[[ ${1:-} == -h || ${1:-} == --help ]] && { usage; exit 0; }
(($# == 2)) || { usage >&2; exit 2; }
suite=$1 dir=$2
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

"$here/bare_root.sh" "$suite" "$dir/build" scripts/package --lint
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
