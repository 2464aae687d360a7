#!/usr/bin/env bash
# Run by bare_package.sh as root in a bare Debian: installs the package that lies in a folder, and uses it as a stranger would.
# Usage: use_package.sh FOLDER
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
package=$(find "${1:?usage: use_package.sh FOLDER}" -name 'megaslide_*.deb')
export DEBIAN_FRONTEND=noninteractive
say() { printf '\n== %s\n' "$*"; }
fail() { echo "use_package.sh: error: $*" >&2; exit 1; }

say "apt-get install $(basename "$package")"
apt-get -q update
apt-get -q install -y --no-install-recommends man-db bash-completion jq "$package" | tail -4
for tool in c++ cmake ninja; do ! command -v "$tool" >/dev/null || fail "$tool is here: this root proves nothing"; done
dpkg-query -W -f '${Package} ${Version} ${Architecture}: ${Installed-Size} KiB\nDepends: ${Depends}\n' megaslide

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
home_before=$(find ~ | sort)
say "finetune --version"
finetune --version
say "man finetune"
MANWIDTH=100 man finetune | head -12
man 5 megaslide-config | grep -q . || fail "no manual page megaslide-config(5)"

# A terminal, a login shell, and the TAB key.
say "finetune --vers<TAB>"
printf 'finetune --vers\t\nexit\n' | TERM=dumb script -qec 'bash -li' /dev/null | tr -d '\r' >terminal
grep -a 'finetune --version' terminal || fail "TAB completes nothing: $(cat terminal)"
grep -aq '^finetune (MegaSlide)' terminal || fail "what TAB completed was not run: $(cat terminal)"

say "shard-weights --init tiny"
shard-weights --init tiny -o model --seed 1
shard-weights --verify model
say "plan-memory --model wan2.1-t2v-14b --machine h200-1.5tb"
plan-memory --model wan2.1-t2v-14b --machine h200-1.5tb --num-frames 81 --size 832x480 | tail -5

say "The demo with the installed programs"
"$tree/scripts/demo" --installed --steps 100 --output "$work/demo" 2>&1 | tail -24

say "The commands of docs/tutorial.md with the installed programs"
"$tree/tests/docs/run.sh" "$tree/docs/tutorial.md" /usr/bin "$tree"

say "apt-get remove megaslide"
dpkg-query -L megaslide >installed
apt-get -q remove -y megaslide | tail -1
left=$(
  while IFS= read -r path; do [[ ! -e $path || -d $path ]] || echo "$path"; done <installed
  # man keeps pages that it formatted, whosever they were.
  find /usr /etc /var /opt /run /srv -xdev -iname '*megaslide*' ! -path '/var/cache/ccache/*' ! -path '/var/cache/man/*'
  comm -13 <(echo "$home_before") <(find ~ ! -name .bash_history | sort)
  dpkg-query -W megaslide 2>/dev/null || true
)
[[ -z $left ]] || fail "removed, and left behind: $left"
say "Everything worked"
