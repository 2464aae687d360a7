def modes: ["async", "sync", "device"];
def pictures: (.id | split(".")[2] | tonumber);
def secs: if . == null then "–" elif . >= 600 then "\(. / 60 | digits(1)) min" elif . >= 2 then "\(. | digits(1)) s" else "\(. * 1000 | digits(0)) ms" end;
def waited: [to_entries[] | select(.value > 0.0005) | "\(.key) \(.value | secs)"] | if length > 0 then join(", ") else "nothing" end;
def step_cells: .values | [(.step_seconds | secs), (.mfu | percent), (.hfu | percent), (.waits | waited)];
def sizes: ["1_3b", "14b", "28b", "33b", "105b"];
def name: {"1_3b": "1.3 B", "14b": "14 B", "28b": "28.7 B", "33b": "33.6 B", "105b": "105 B"}[.];
{
  text: [
    "async: transfers and the optimizer run under the computation. sync: one after the other. device: asynchronous, with the state of each layer sent to the device for its update and back. The results of a step are the same bits in all three.",
    "Simulated rows are of an H200 in a host with 1.5 TB at rates estimated from data sheets. Measured rows are of this machine's processor behind an emulated link: they show that overlap is real, not what a GPU reaches. MFU counts 6N and attention without recomputation, HFU with it. The dashed line of a timeline is the moment the loss is known; percentages say how much of the step a stream is busy.",
    "The forward pass of the speed-up is the time from the beginning of a step until its loss: uploads, the updates of the step before, and the blocks. It is largest where computation and the slower of transfer and update take equally long; at longer clips the computation hides all, at shorter ones nothing can."
  ],
  charts: (
    [{kind: "line", name: "throughput-forward", log_x: true, markers: true, width: 560, height: 400, title: "Forward pass: synchronous time over asynchronous", x_label: "tokens of a step (log), simulated",
      y_label: "times as fast", y_min: 1,
      series: [sizes[] as $s | {name: ($s | name), x: [rows("forward.\($s).")[] | select(.id | endswith("async")) | .values.tokens],
        y: [rows("forward.\($s).")[] | select(.id | endswith("async")) | . as $a | row("forward.\($s).\(pictures).sync").values.forward_seconds / $a.values.forward_seconds]}]},
     {kind: "line", name: "throughput-mfu", log_x: true, markers: true, width: 560, height: 400, title: "MFU of a whole step, asynchronous and (dashed) synchronous", x_label: "tokens of a step (log), simulated", y_label: "MFU, %", y_min: 0,
      series: [sizes[] as $s | ("async", "sync") as $m | {name: (if $m == "async" then ($s | name) else "" end), dashed: ($m == "sync"), color: (["#0b6bcb", "#d9480f", "#2b8a3e", "#9c36b5", "#c99700"][sizes | index($s)]),
        x: [rows("forward.\($s).")[] | select(.id | endswith(".\($m)")) | .values.tokens], y: [rows("forward.\($s).")[] | select(.id | endswith(".\($m)")) | 100 * .values.mfu]}]}]
    + [modes[] as $m | {kind: "timeline", name: "throughput-planned-\($m)", trace: "\($work)/step.105b.81.\($m).trace.json", title: "105 B, 81 pictures of 832x480, \($m), simulated"}]
    + [modes[] as $m | {kind: "timeline", name: "throughput-measured-\($m)", trace: "\($work)/run.\($m).trace.json", title: "Measured over the emulated link, \($m): the last step"}]),
  tables: [
    {title: "A step at the paper's scale (simulated)", columns: ["model", "pictures of 832x480", "tokens", "mode", "step", "MFU", "HFU", "waited for"],
     rows: [rows("step.")[] | (.id | split(".")) as $id | [($id[1] | name), $id[2], "\(.values.tokens)", $id[3]] + step_cells]},
    {title: "Over the emulated link (measured)", columns: ["mode", "step", "MFU", "HFU", "waited for", "until the loss", "device peak"],
     rows: [modes[] as $m | row("run.\($m)") | [$m] + step_cells + [(row("run-forward.\($m)").values.forward_seconds | secs), (.values.device_peak_bytes | gb)]]},
    {title: "The largest speed-up of the forward pass (simulated)", columns: ["parameters", "forward", "whole step", "at tokens", "pictures of 832x480"],
     rows: [sizes[] as $s | row("speedup.\($s)").values | ["\(.parameters / 1e9 | digits(1)) B", "\(.forward | digits(2))", "\(.step | digits(2))", "\(.tokens)", "\(.pictures)"]]}
  ]
} | document
