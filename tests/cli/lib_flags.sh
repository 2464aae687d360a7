# shellcheck shell=bash
# Options of a program in three places. Each prints its list sorted, one a line.

# help_flags BIN [COMMAND]: the names at the left of the option lines of --help.
help_flags() {
  "$@" --help | awk '
    /^  (-[A-Za-z]|    --)/ {
      for (i = 1; i <= NF; ++i) {
        name = $i
        comma = sub(/,$/, "", name)
        if (name !~ /^-/) break
        print name
        if (!comma) break
      }
    }' | LC_ALL=C sort -u
}

# page_flags PAGE.scd: the names in bold that begin the entries of OPTIONS.
page_flags() {
  awk '/^# / {options = ($0 == "# OPTIONS")} options && /^\*-/' "$1" | grep -oE '^\*-[^_]*' | grep -oE '\*--?[A-Za-z][a-z0-9-]*' \
    | tr -d '*' | LC_ALL=C sort -u
}

# commands BIN: the subcommands that --help lists.
commands() {
  "$1" --help | awk '/^[A-Z][A-Za-z ]*:$/ {inside = ($0 == "Commands:")} inside && /^  [a-z]/ {print $1}'
}
