# shellcheck shell=bash
# Shared by the scripts beside it: `source` it from bash with `set -euo pipefail`.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The targets that are installed.
# shellcheck disable=SC2034  # used by the scripts that source this one
PROGRAMS=(shard-weights encode-clips plan-memory finetune sample-video bench-dsa eval-vbench megaslide_video man_pages)

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
fail() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
if [[ ! -t 2 || -n ${NO_COLOR:-} ]]; then
  say() { printf '== %s\n' "$*" >&2; }
fi

# Compilers at once: one a core, and no more than one for each 1.5 GiB of memory.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  ((memory < 1)) && memory=1
  echo $((cores < memory ? cores : memory))
}

# need_packages PURPOSE...: installs what packages.txt lists for these purposes and dpkg doesn't have. Without
# anything missing it neither needs the network nor root.
need_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "No apt here: taking the packages of scripts/packages.txt as installed"
    return
  fi
  local wanted=() missing=() purpose name state
  for purpose; do
    while read -r name; do wanted+=("$name"); done \
      < <(awk -v p="$purpose" '!/^#/ && $2 == p {print $1}' "$ROOT/scripts/packages.txt")
  done
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
  for name in "${wanted[@]}"; do
    state=$(awk -v n="$name" '$1 == n && $2 == "installed" {print "ok"; exit}' <<<"$installed")
    [[ $state == ok ]] || missing+=("$name")
  done
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "missing packages, and neither root nor sudo to install them:
  remedy: as root, apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing ${#missing[@]} packages: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600)
  # A failed update may concern some other source; whether the packages can be had shows in the next step.
  "${apt[@]}" update >&2 || say "apt-get update failed; trying with the lists at hand"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 ||
    fail "could not install ${missing[*]}
  remedy: see apt's message above; on Ubuntu the 'universe' component must be enabled"
}

# configure_and_build PRESET TESTS(ON|OFF) [-DOPTION... --] [TARGET...]: configures build/PRESET and builds all of it, or the
# targets.
configure_and_build() {
  local preset=$1 tests=$2 log options=()
  shift 2
  if [[ ${1:-} == -D* ]]; then
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
  fi
  # ccache wants a writable home for its cache.
  if [[ -z ${CCACHE_DIR:-} ]] && ! { [[ -w ${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache} ]] ||
    mkdir -p "${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}" 2>/dev/null; }; then
    export CCACHE_DIR=$ROOT/build/.ccache
  fi
  # A build folder that was configured elsewhere (a copied tree) is of no use.
  local cache=$ROOT/build/$preset/CMakeCache.txt
  if [[ -e $cache ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$cache"; then
    say "build/$preset was configured for another folder: starting it anew"
    rm -rf "${ROOT:?}/build/$preset"
  fi
  mkdir -p "$ROOT/build" || fail "cannot write to $ROOT/build"
  log=$ROOT/build/$preset-configure.log
  say "Configuring $preset"
  if ! (cd "$ROOT" && cmake --preset "$preset" -DMEGASLIDE_TESTS="$tests" "${options[@]}" >"$log" 2>&1); then
    cat "$log" >&2
    fail "configuring failed (log: $log)"
  fi
  say "Building $preset with $(build_jobs) jobs"
  local flags=()
  [[ -t 2 ]] || flags=(--quiet)
  (cd "$ROOT" && ninja -C "build/$preset" -j "$(build_jobs)" "${flags[@]}" "$@" >&2) || fail "the build of $preset failed"
}
