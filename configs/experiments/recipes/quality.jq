def variants: ["dense", "window", "dsa-zero", "dsa", "dsa-motion"];
def name: {"dense": "dense", "window": "window", "dsa-zero": "deformable, R = 0", "dsa": "deformable", "dsa-motion": "deformable, with motion"}[.];
def datasets: ["motion", "real"] | map(select(. as $d | [rows("plan.\($d).")] | .[0] | length > 0));
def lengths: [$all[] | select(.id | startswith("plan.")) | .id | split(".")[2] | tonumber] | unique;
def data_name: {"motion": "structured motion", "real": "real clips"}[.];
def runs($d; $n; $v): rows("run.\($d).\($n).\($v).");
def seed: .id | split(".") | last;
# Differences between runs of equal seed.
def against($d; $n; $v; $base): [runs($d; $n; $v)[] | . as $r | row("run.\($d).\($n).\($base).\(seed)") | select(. != null) | $r.values.held_out_loss - .values.held_out_loss];
def scores($d; $n; $v; $name): [rows("score.\($d).\($n).\($v).")[].values.dimensions[$name] | select(. != null)];
def dimensions: [$all[] | select(.id | startswith("score.")) | .values.dimensions | keys[]] | unique;
def curve($d; $n; $v): runs($d; $n; $v) as $r | if ($r | length) == 0 then {x: [], y: []} else $r[0].values.validation | to_entries
  | map(.key as $k | {x: .value[0], all: [$r[].values.validation[$k][1]]}) | {x: map(.x), y: map(.all | mean)} end;
def against_curve($d; $n; $v; $base): runs($d; $n; $v) as $r | if ($r | length) == 0 then {x: [], y: []} else $r[0].values.validation | to_entries
  | map(.key as $k | {x: .value[0], all: [$r[] | .values.validation[$k][1] - row("run.\($d).\($n).\($base).\(seed)").values.validation[$k][1]]})
  | {x: map(.x), y: map(.all | mean), low: map(.all | min), high: map(.all | max)} end;
lengths as $lengths
| {
  text: [
    "A model of 0.9 million parameters, pretrained with dense attention on clips of structured motion, is adapted with each kind of attention: window, deformable attention whose samples stay in place (R = 0, the paper's ablation), deformable attention, and deformable attention with the motion term in half of its groups.",
    "Clips have \($lengths[0]) or \($lengths[1]) pictures of 64x64. The device has a memory of 20 MB behind an emulated link; the longer clips do not fit with dense attention, and the others take them slab by slab. Videos of dense attention at the longer length are of the model that was adapted to the shorter clips.",
    "Held-out loss is of clips that nothing is learnt from; which ones depends on the seed, so differences are between runs of equal seed. ± is half of Student's 95% interval over seeds. Scores are eval-vbench's of videos sampled for captions of the data; without WEIGHTS only temporal_flickering needs no network, and there a video that does not move at all scores 1.",
    "What so small models show of so few clips is how the kinds of attention compare here, not how good they are at scale."
  ],
  charts: [datasets[] as $d | $lengths[] as $n
    | {kind: "line", name: "quality-\($d)-\(if $n == $lengths[0] then "short" else "long" end)", width: 560, height: 360,
       title: "Held-out loss, \($d | data_name), \($n) pictures, less R = 0", x_label: "step", y_label: "below 0: better than R = 0; band: lowest to highest of the seeds",
       series: [variants[] as $v | select($v != "dsa-zero") | {name: ($v | name)} + against_curve($d; $n; $v; "dsa-zero")]}],
  tables: ([datasets[] as $d | $lengths[] as $n
    | {title: "\($d | data_name), \($n) pictures (measured)", columns: (["attention", "fits 20 MB", "device peak", "seeds", "held-out loss", "less dense", "less R = 0"] + dimensions),
       rows: ([variants[] as $v | runs($d; $n; $v) as $r | row("plan.\($d).\($n).\($v)").values as $plan
         | [($v | name), (if $plan.fits then "yes" else "no: \($plan.device.peak | gb)" end), ($r[0].values.device_peak_bytes | gb),
            "\($r | length)", ([$r[].values.held_out_loss] | interval(4)),
            (against($d; $n; $v; "dense") | if $v == "dense" then "–" else interval(4) end), (against($d; $n; $v; "dsa-zero") | if $v == "dsa-zero" then "–" else interval(4) end)]
           + [dimensions[] as $m | scores($d; $n; $v; $m) | interval(4)]]
         + [["the clips themselves", "", "", "", "", "", ""] + [dimensions[] as $m | row("score.\($d).\($n).clips").values.dimensions[$m] | digits(4) | if . == null then "–" else tostring end]])}]),
  pictures: [datasets[] as $d | $lengths[] as $n | variants[] as $v
    | {file: "\($work)/sheets/\($d).\($n).\($v).1.png", caption: "\($v | name), \($d | data_name), \($n) pictures, seed 1: a row a caption"}]
} | document
