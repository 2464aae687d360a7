# Put before a target's own program, after interval.jq: the rows by their names, numbers as text.
. as $all
| def row($id): first($all[] | select(.id == $id)) // null;
  def rows($start): [$all[] | select(.id | startswith($start))];
  # Adding 0 makes -0 a 0.
  def digits($n): if . == null then null else . * pow(10; $n) | round / pow(10; $n) + 0 end;
  def percent: if . == null then "–" else "\(. * 100 | round)%" end;
  def interval($n): if length == 0 then "–" else (mean | digits($n) | tostring) + (half as $h | if $h == null then "" else " ± \($h | digits($n))" end) end;
  def gb: if . == null then "–" elif . >= 1e12 then "\(. / 1e12 | digits(2)) TB" elif . >= 1e9 then "\(. / 1e9 | digits(1)) GB" else "\(. / 1e6 | digits(2)) MB" end;
  # A line of a chart out of rows: x and y are programs.
  def line($name; x; y): {name: $name, x: map(x), y: map(y)};
  def loads: [$all[].load | select(. != null)] | if length > 0 then ", measured at a load of \(min)\(if min < max then " to \(max)" else "" end)" else "" end;
  def document: {target: $target, title: $title, quick: $quick, date: $date, machine: ($machine + loads), version: $version, seconds: $seconds, rows: $all} + .;
