def frames: (.id | split(".") | last | tonumber);
def variants: ["dense-materialised", "dense", "window", "dsa", "window-slabs", "dsa-slabs"];
def machines: [["h200", "H200, 141 GB"], ["h100nvl", "H100 NVL, 94 GB"], ["rtx4090", "RTX 4090, 24 GB"]];
def run_name: .id | ltrimstr("ledger.") | {"dense": "dense attention", "dsa": "deformable attention", "fp32-masters": "dense, fp32 masters", "layer": "dense, clipped by layer", "int8": "dense, int8 moments", "smallest": "dense, all of the smallest"}[.];
def longest: if . == null then "–" elif .values.at_least then "256 and more" elif .values.latent_frames == 0 then "not one" else "\(.values.latent_frames)" end;
def peak_chart($short; $name):
  row("machine.\($short)") as $m
  | rows("grid.\($short).dsa.") as $any
  | {kind: "line", name: "memory-\($short)", log_x: true, log_y: true, markers: true, width: 560, height: 420,
     title: "\($m.values.model) beside \($name)", x_label: "latent frames of 1920x1088 (log)", y_label: "device peak, GB (log)",
     series: ([variants[] as $v | rows("grid.\($short).\($v).") | line($v; frames; .values.device.peak / 1e9) + {dashed: ($v == "window")}]
       + [{name: "the device's memory", x: [$any[0], $any[-1] | frames], y: [$m.values.device_memory / 1e9, $m.values.device_memory / 1e9], dashed: true}])};
def tiny_table: [variants[] as $v | rows("tiny.\($v).")[] | . as $run | row("tiny-plan.\($v).\(frames)") as $plan
  | [$v, (frames | tostring), ($plan.values.tokens | tostring), ($plan.values.device.peak | tostring), ($run.values.device_peak_bytes | tostring),
     (if $plan.values.device.peak == $run.values.device_peak_bytes then "yes" else "NO" end)]];
{
  text: [
    "Blocks' inputs wait in host memory (stream.stash: host) in all of the planned runs, and slabs are of 8 latent frames. dense-materialised keeps the matrix of scores, dense does not. Frames are latent frames, as the paper counts them without compression in time: 256 of 1920x1088 are 2,088,960 tokens.",
    "The planned figures are simulated by plan-memory, which runs the schedule of finetune on a device that allocates nothing; the table of the tiny model shows that what it plans is what a run takes, to the byte."
  ],
  charts: ([machines[] as [$short, $name] | peak_chart($short; $name)]
    + [{kind: "line", name: "memory-tiny", y_min: 0, markers: true, width: 560, height: 420, title: "The tiny model, measured", x_label: "pictures of 64x64",
        y_label: "device peak, MB", series: [variants[] as $v | rows("tiny.\($v).") | line($v; frames; .values.device_peak_bytes / 1e6) + {dashed: ($v == "window")}]},
       {kind: "bar", name: "memory-ledger", title: "105 B parameters on the host, 81 pictures of 832x480", x_label: "TB, simulated", width: 700,
        bars: [rows("ledger.")[] | {label: run_name, value: (.values.host.total / 1e12), note: (.values.host.total | gb)}]}]),
  tables: [
    {title: "The longest clip of 1920x1088 that the device's memory holds, in latent frames (simulated)",
     columns: (["machine", "model"] + variants),
     rows: [machines[] as [$short, $name] | [$name, row("machine.\($short)").values.model] + [variants[] as $v | row("longest.\($short).\($v)") | longest]]},
    {title: "Host memory of 105 B parameters, 81 pictures of 832x480 (simulated)",
     columns: ["run", "parameters", "weights", "masters", "moments", "gradients", "these four", "activations", "in all", "fits 1.65 TB"],
     rows: [rows("ledger.")[] | .values as $v | [run_name, "\($v.parameters / 1e9 | digits(1)) B", ($v.host.weights | gb), ($v.host.masters | gb), ($v.host.moments | gb),
       ($v.host.gradients | gb), ($v.host.state | gb), ($v.host.activations | gb), ($v.host.total | gb), (if $v.fits then "yes" else "no" end)]]},
    {title: "The tiny model: device peak in bytes, planned and measured", columns: ["attention", "pictures", "tokens", "planned", "measured", "equal"], rows: tiny_table}
  ]
} | document
