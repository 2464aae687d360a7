def mean: if length > 0 then add / length else null end;
# Half of Student's 95% interval of a mean: factors for 1 to 9 degrees of freedom, and beyond them that of 10.
def half: length as $n
  | if $n < 2 then null
    else (add / $n) as $m | (map(. - $m | . * .) | add / ($n - 1) / $n | sqrt)
      * ([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262][$n - 2] // 2.228)
    end;
