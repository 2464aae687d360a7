# fish completion of a MegaSlide program, the one after which the file is named. Options and the words they take are read
# from its own --help, which answers within milliseconds; presets lie beside the program.

function __megaslide_presets
    set -l program (command -s $argv[1])
    or return
    for file in (dirname $program)/../share/megaslide/configs/$argv[2]/*.yaml
        basename $file .yaml
    end
end

# "short<TAB>long<TAB>type<TAB>description" a line for every option that "CALL... --help" lists, "-" for what it lacks.
function __megaslide_options
    $argv --help 2>/dev/null | awk -v OFS='\t' '
        /^  (-[A-Za-z]|    --)/ {
            short = long = type = "-"
            for (i = 1; i <= NF && $i ~ /^-/; ++i) {
                name = $i
                comma = sub(/,$/, "", name)
                if (name ~ /^--/) long = substr(name, 3); else short = substr(name, 2)
                if (!comma) { ++i; break }
            }
            rest = substr($0, 7)
            gap = match(rest, /  /)
            if (i <= NF && (gap == 0 || index($0, $i) < 7 + gap)) type = $i
            text = gap ? substr(rest, gap) : "-"
            sub(/^ +/, "", text)
            print short, long, type, text
        }'
end

# Declares the options of a call; CONDITION says where they hold.
function __megaslide_declare -a program condition
    for line in (__megaslide_options $argv[3..])
        set -l part (string split \t -- $line)
        set -l option -l $part[2]
        test $part[4] != -; and set -a option -d $part[4]
        test $part[1] != -; and set -a option -s $part[1]
        if contains -- $part[2] init model; and test $part[3] != -
            set -a option -r -a "(__megaslide_presets $program models)"
        else if test $part[2] = machine
            set -a option -r -a "(__megaslide_presets $program machines)"
        else if string match -q '*|*' -- $part[3]
            set -a option -x -a (string replace -a '|' ' ' -- $part[3])
        else if test $part[3] != -
            set -a option -r
        end
        complete -c $program -n $condition $option
    end
end

begin
    set -l program (basename (status filename) .fish)
    set -l commands ($program --help 2>/dev/null | awk '/^[A-Z][A-Za-z ]*:$/ {inside = ($0 == "Commands:")} inside && /^  [a-z]/ {print $1}')
    set -l condition true
    test -n "$commands"; and set condition "not __fish_seen_subcommand_from $commands"
    __megaslide_declare $program $condition $program
    for command in $commands
        complete -c $program -n __fish_is_first_arg -a $command
        __megaslide_declare $program "__fish_seen_subcommand_from $command" $program $command
    end
end
