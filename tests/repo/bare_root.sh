#!/usr/bin/env bash
# Proves that nothing installed by hand counts: makes a bare Debian or Ubuntu in a folder, clones the source into it, and runs a
# script of the project inside it as root. Not part of CI: it needs root, debootstrap, a Debian mirror and 4 GiB.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/repo/bare_root.sh SUITE DIR [COMMAND...]

  SUITE    bookworm, trixie, or Ubuntu's noble
  DIR      where the root lies; made when absent, kept for the next run
  COMMAND  run in the source folder of the root; default: scripts/demo

The source is a clone of what is committed here. The command runs without a terminal and without a locale.

BARE_ROOT_MIRROR names the mirror (default: http://deb.debian.org/debian, http://archive.ubuntu.com/ubuntu). A proxy in apt's
configuration or in http_proxy of the calling shell is carried into the root. BARE_ROOT_CCACHE names a folder for the compiler's
cache: with it a root that is made anew does not compile everything again.
TEXT
}
[[ ${1:-} == -h || ${1:-} == --help ]] && { usage; exit 0; }
(($# >= 2)) || { usage >&2; exit 2; }
((EUID == 0)) || { echo "bare_root.sh: error: run me as root: chroot and mount need it" >&2; exit 1; }
suite=$1 root=$2
shift 2
(($#)) || set -- scripts/demo
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
case $suite in
  noble)
    # Debian's debootstrap need not know a later Ubuntu: they have been made in one way since this one.
    mirror=http://archive.ubuntu.com/ubuntu components='main universe' recipe=gutsy
    ;;
  *) mirror=http://deb.debian.org/debian components=main recipe=$suite ;;
esac
mirror=${BARE_ROOT_MIRROR:-$mirror}

mkdir -p "$root"
root=$(cd "$root" && pwd)
[[ $root != / ]] || { echo "bare_root.sh: error: DIR must not be /" >&2; exit 2; }
if [[ ! -x $root/usr/bin/apt-get ]]; then
  command -v debootstrap >/dev/null || apt-get install -y debootstrap
  echo "== debootstrap $suite" >&2
  debootstrap --variant=minbase --components="${components/ /,}" "$suite" "$root" "$mirror" "/usr/share/debootstrap/scripts/$recipe"
fi

mounted=()
clean_up() {
  local i
  for ((i = ${#mounted[@]} - 1; i >= 0; --i)); do umount -l "${mounted[i]}" || true; done
}
trap clean_up EXIT
mount_in() {
  mkdir -p "$root$2"
  mount "${@:3}" "$1" "$root$2"
  mounted+=("$root$2")
}
mount_in proc /proc -t proc
mount_in /sys /sys --bind -o ro
mount_in /dev /dev --bind
mount_in /dev/pts /dev/pts --bind
mount_in tmpfs /dev/shm -t tmpfs
if [[ -n ${BARE_ROOT_CCACHE:-} ]]; then
  mkdir -p "$BARE_ROOT_CCACHE"
  mount_in "$BARE_ROOT_CCACHE" /var/cache/ccache --bind
fi

# The network as the host sees it.
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cp -L /etc/hosts "$root/etc/hosts" 2>/dev/null || true
apt-config dump 2>/dev/null | grep -iE '^(Acquire::https?::Proxy|Acquire::https?::[^ ]*CaInfo|Acquire::Retries)' \
  >"$root/etc/apt/apt.conf.d/90host" || true
echo "deb $mirror $suite $components" >"$root/etc/apt/sources.list"
for extra in /usr/local/share/ca-certificates /etc/ssl/certs; do
  if [[ -d $extra ]]; then mkdir -p "$root$extra" && cp -rLn "$extra/." "$root$extra/" 2>/dev/null || true; fi
done

rm -rf "$root/src/megaslide"
git -c safe.directory='*' clone -q --depth 1 "file://$source_dir" "$root/src/megaslide"

environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb)
# Paths relative to the build folder, so that trees in other folders find each other's objects.
if [[ -n ${BARE_ROOT_CCACHE:-} ]]; then environment+=(CCACHE_DIR=/var/cache/ccache CCACHE_BASEDIR=/ CCACHE_NOHASHDIR=1); fi
for name in http_proxy https_proxy no_proxy; do
  if [[ -n ${!name:-} ]]; then environment+=("$name=${!name}"); fi
done
echo "== in $suite: $*" >&2
started=$SECONDS status=0
chroot "$root" /usr/bin/env -i "${environment[@]}" /bin/sh -c 'cd /src/megaslide && exec "$@"' sh "$@" </dev/null || status=$?
echo "== $suite: exit $status after $((SECONDS - started)) s" >&2
exit "$status"
