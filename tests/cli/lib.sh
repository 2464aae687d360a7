# shellcheck shell=bash
# Helpers of the shell tests: each check prints what went wrong; finish exits 1 when there was anything.
failures=0
checks=0
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
export LC_ALL=C

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# run COMMAND...: sets status, out and err.
run() {
  status=0
  "$@" >"$temporary/out" 2>"$temporary/err" || status=$?
  out=$(tr -d '\0' <"$temporary/out")
  err=$(tr -d '\0' <"$temporary/err")
  shown="$*"
}

# expect STATUS [out|err REGEX]...: an empty regex wants an empty stream.
expect() {
  checks=$((checks + 1))
  [[ $status == "$1" ]] || fail "$shown: exit $status, expected $1; stderr: $err"
  shift
  while (($#)); do
    local text=$out
    [[ $1 == err ]] && text=$err
    if [[ -z $2 ]]; then
      [[ -z $text ]] || fail "$shown: $1 should be empty, is: $text"
    else
      grep -qE -- "$2" <<<"$text" || fail "$shown: $1 lacks /$2/, is: $text"
    fi
    shift 2
  done
}

finish() {
  ((checks > 0)) || fail "nothing was checked"
  ((failures)) || echo "$checks checks passed"
  exit $((failures > 0))
}
