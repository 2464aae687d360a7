def kinds: ["fp32", "bf16", "fp8"];
def name: {"fp32": "fp32", "bf16": "bf16", "fp8": "bf16, fp8 forward"}[.];
def runs($p): rows("run.\($p).");
def seed: .id | split(".") | last;
# The mean of every validation over seeds, less that of the same seed in `base` where that is a name.
def curve($base): runs(.) as $r | $r[0].values.validation | to_entries
  | map(.key as $k | {x: .value[0], all: [$r[] | .values.validation[$k][1] - (if $base == null then 0 else row("run.\($base).\(seed)").values.validation[$k][1] end)]})
  | {x: map(.x), y: map(.all | mean), low: map(.all | min), high: map(.all | max)};
{
  text: ["The same run with weights and products in fp32, in bf16, and in bf16 with forward products in 8 bits. fp32 also keeps fp32 masters and gradients; sums, norms, softmax and the residual stream are fp32 in all. Differences are between runs of equal seed, with half of Student's 95% interval over seeds."],
  charts: [
    {kind: "line", name: "precision-loss", title: "Held-out loss while training", x_label: "step", y_label: "mean over seeds; band: lowest to highest", width: 560, height: 360,
     series: [kinds[] | {name: name} + curve(null)]},
    {kind: "line", name: "precision-difference", title: "The same, less that of fp32 with the same seed", x_label: "step", y_label: "below 0: better", width: 560, height: 360,
     series: [kinds[1:][] | {name: name} + curve("fp32")]}],
  tables: [
    {title: "Measured", columns: ["type", "seeds", "held-out loss", "less fp32", "device peak"],
     rows: [kinds[] as $p | runs($p) as $r | [($p | name), ($r | length | tostring), ([$r[].values.held_out_loss] | interval(4)),
       (if $p == "fp32" then "–" else [$r[] | .values.held_out_loss - row("run.fp32.\(seed)").values.held_out_loss] | interval(5) end),
       ($r[0].values.device_peak_bytes | gb)]]}
  ]
} | document
