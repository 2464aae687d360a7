# bash completion of the MegaSlide programs. Options and the words they take are read from a program's own --help, which
# answers within milliseconds; presets lie beside the program.

# "--name type" a line for every option of a program (and of its command, when one is given).
_megaslide_options() {
  "$@" --help 2>/dev/null | awk '
    /^  (-[A-Za-z]|    --)/ {
      count = 0
      for (i = 1; i <= NF; ++i) {
        name = $i
        comma = sub(/,$/, "", name)
        if (name !~ /^-/) break
        names[++count] = name
        if (!comma) { ++i; break }
      }
      gap = match(substr($0, 7), /  /)
      type = (i <= NF && (gap == 0 || index($0, $i) < 7 + gap)) ? $i : "-"
      for (k = 1; k <= count; ++k) print names[k], type
    }'
}

_megaslide_presets() {
  local folder file
  folder=$(dirname "$(command -v "$1")")/../share/megaslide/configs/$2
  for file in "$folder"/*.yaml; do
    [[ -e $file ]] && basename "$file" .yaml
  done
}

_megaslide() {
  local program=$1 word=$2 previous=$3 options name type first
  COMPREPLY=()
  local -a call=("$program")
  first=$("$program" --help 2>/dev/null | awk '/^[A-Z][A-Za-z ]*:$/ {inside = ($0 == "Commands:")} inside && /^  [a-z]/ {print $1}')
  for name in $first; do [[ ${COMP_WORDS[1]:-} == "$name" && $COMP_CWORD -gt 1 ]] && call+=("$name"); done
  options=$(_megaslide_options "${call[@]}")

  # The value of an option: --name value, or --name=value, which readline splits at the equals sign.
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD - 2]}
  [[ $word == = ]] && word= previous=${COMP_WORDS[COMP_CWORD - 1]}
  while read -r name type; do
    [[ $name == "$previous" && $type != - ]] || continue
    case $name in
      --init | --model) mapfile -t COMPREPLY < <(compgen -W "$(_megaslide_presets "$program" models)" -- "$word"; compgen -f -- "$word") ;;
      --machine) mapfile -t COMPREPLY < <(compgen -W "$(_megaslide_presets "$program" machines)" -- "$word"; compgen -f -- "$word") ;;
      *)
        if [[ $type == *'|'* ]]; then mapfile -t COMPREPLY < <(compgen -W "${type//|/ }" -- "$word"); fi
        ;;
    esac
    return
  done <<<"$options"

  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(cut -d' ' -f1 <<<"$options")" -- "$word")
  elif ((COMP_CWORD == 1)) && [[ -n $first ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$first" -- "$word"; compgen -f -- "$word")
  fi
}

# Where nothing is offered, bash completes file names.
complete -o default -o bashdefault -F _megaslide shard-weights encode-clips plan-memory finetune sample-video bench-dsa eval-vbench
