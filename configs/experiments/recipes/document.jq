# Put before a target's own program, which makes {text, charts, tables, pictures} of the rows.
. as $all
| def row($id): first($all[] | select(.id == $id)) // null;
  def rows($start): [$all[] | select(.id | startswith($start))];
  def mean: if length > 0 then add / length else null end;
  def digits($n): if . == null then null else . * pow(10; $n) | round / pow(10; $n) + 0 end;
  def percent: if . == null then "–" else "\(. * 100 | round)%" end;
  # Half of Student's 95% interval of a mean: factors for 1 to 9 degrees of freedom, and beyond them that of 10.
  def half: length as $n
    | if $n < 2 then null
      else (add / $n) as $m | (map(. - $m | . * .) | add / ($n - 1) / $n | sqrt)
        * ([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262][$n - 2] // 2.228)
      end;
  def interval($n): if length == 0 then "–" else (mean | digits($n) | tostring) + (half as $h | if $h == null then "" else " ± \($h | digits($n))" end) end;
  def gb: if . == null then "–" elif . >= 1e12 then "\(. / 1e12 | digits(2)) TB" elif . >= 1e9 then "\(. / 1e9 | digits(1)) GB" else "\(. / 1e6 | digits(2)) MB" end;
  # A line of a chart out of rows: x and y are programs.
  def line($name; x; y): {name: $name, x: map(x), y: map(y)};
  def document: {target: $target, title: $title, quick: $quick, date: $date, machine: $machine, version: $version, seconds: $seconds, rows: $all} + .;
