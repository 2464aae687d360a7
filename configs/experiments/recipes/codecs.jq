def pairs: [$all[] | select(.id | startswith("state.")) | .id | ltrimstr("state.")];
def runs($p): rows("run.\($p).");
def seed: .id | split(".") | last;
def against($p; $base): [runs($p)[] | . as $r | row("run.\($base).\(seed)") | ($r.values.held_out_loss - .values.held_out_loss)];
def state: .values | (.host.weights + .host.masters + .host.moments) / .parameters;
def moments: split(".")[1]; def masters: split(".")[0];
def curve($p): runs($p) as $r | $r[0].values.validation | to_entries | map(.key as $k | {x: .value[0], all: [$r[].values.validation[$k][1]]})
  | {x: map(.x), y: map(.all | mean), low: map(.all | min), high: map(.all | max)};
def difference_curve($p): runs($p) as $r | $r[0].values.validation | to_entries
  | map(.key as $k | {x: .value[0], all: [$r[] | .values.validation[$k][1] - row("run.fp32.fp32.\(seed)").values.validation[$k][1]]})
  | {x: map(.x), y: map(.all | mean), low: map(.all | min), high: map(.all | max)};
{
  text: [
    "The same model, batches and noise with each pair of masters and moments. Held-out loss is of clips that nothing is learnt from; differences are between runs of equal seed, with half of Student's 95% interval over seeds.",
    "Split masters are bit-equal to fp32 masters: the same state in two bytes less a parameter, so their difference is zero exactly or a bug. bf16-sr keeps no master at all and rounds stochastically."
  ],
  charts: [
    {kind: "line", name: "codecs-loss", title: "Held-out loss while training", x_label: "step", y_label: "mean over seeds; band: lowest to highest", width: 560, height: 380,
     series: [pairs[] as $p | {name: ($p | gsub("\\."; " + "))} + curve($p) | if ($p == "fp32.fp32" or $p == "split.fp32" or $p == "bf16-sr.int8") then . else del(.low, .high) end]},
    {kind: "line", name: "codecs-difference", title: "The same, less fp32 + fp32 of the same seed", x_label: "step", y_label: "below 0: better", width: 560, height: 380,
     series: [pairs[] as $p | select($p != "fp32.fp32") | {name: ($p | gsub("\\."; " + "))} + difference_curve($p) | if ($p == "split.fp32" or $p == "bf16-sr.int8") then . else del(.low, .high) end]}],
  tables: [
    {title: "Held-out loss (measured) and bytes of weights, masters and moments a parameter (simulated, 105 B)",
     columns: ["masters", "moments", "bytes", "105 B on the host", "seeds", "held-out loss", "less fp32 + fp32", "skipped steps", "bits as fp32 + fp32"],
     rows: [pairs[] as $p | row("state.\($p)") as $s | [($p | masters), ($p | moments), ($s | state | digits(2) | tostring), ($s.values.host.total | gb), (runs($p) | length | tostring),
       ([runs($p)[].values.held_out_loss] | interval(4)), (if $p == "fp32.fp32" then "–" else against($p; "fp32.fp32") | interval(5) end), ([runs($p)[].values.skipped] | add | tostring),
       (if $p == "fp32.fp32" then "–" elif (against($p; "fp32.fp32") | all(. == 0)) and ([runs($p)[] | .values.validation == row("run.fp32.fp32.\(seed)").values.validation] | all) then "all losses equal" else "no" end)]]}
  ]
} | document
