# A run in a few numbers: its metrics.jsonl, slurped, and the summary that finetune printed. The first two steps are left out of
# times, for what only they do: memory is touched for the first time, and no optimizer of an earlier step runs.
def mean: if length > 0 then add / length else null end;
def median: sort | if length > 0 then .[(length - 1) / 2 | floor] else null end;
. as $all
| (if length > 2 then .[2:] else . end) as $settled
| ($all | map(select(.validation_loss != null) | [.step, .validation_loss])) as $validation
| {
    steps: length,
    tokens: $all[0].tokens,
    first_loss: $all[0].loss,
    loss: ($all[-([1, length / 5 | floor] | max):] | map(.loss) | mean),
    held_out_loss: ($validation[-1][1]),
    validation: $validation,
    skipped: ($all | map(select(.skipped)) | length),
    step_seconds: ($settled | map(.seconds) | median),
    tokens_per_second: ($settled | map(.tokens_per_second) | median),
    mfu: ($settled | map(.mfu) | median),
    hfu: ($settled | map(.hfu) | median),
    waits: (reduce ("upload", "download", "optimizer", "disk", "data") as $k ({}; .[$k] = ($settled | map(.waits[$k] // 0) | mean))),
    device_peak_bytes: ($all | map(.device_peak_bytes) | max),
    host_rss_bytes: ($all | map(.host_rss_bytes) | max),
    state_hash: $summary[0].state_hash
  }
