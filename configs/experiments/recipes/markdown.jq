# The tables of a report in Markdown, each under the heading before it; a further one of a section under the line before it.
def cells: ltrimstr("| ") | rtrimstr(" |") | split(" | ");
{tables: [split("\n## ")[1:][] | split("\n") as $lines | [range(0; $lines | length) | select($lines[.] | startswith("|---"))] as $heads
  | range(0; $heads | length) as $k | $heads[$k] as $head
  | ($lines[:$head - 1] | map(select(. != "" and (startswith("|") | not)))) as $before
  | {title: (if $k == 0 then $lines[0] else ($before | last) end), columns: ($lines[$head - 1] | cells),
     rows: ([label $last | $lines[$head + 1:][] | if startswith("|") then . else break $last end] | map(cells))}]}
