// An evaluation as JSON, as a table, as files in VBench's layout, and as an HTML page.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "eval/evaluate.h"

namespace megaslide {

// cli.md, eval-vbench: {dimensions: {name: {raw, normalised, weight, n, skipped, ci95, videos: [{path, value}]}},
// quality, semantic, total, withheld, provenance}, and beside them audit, alarms, drift, videos, warnings. An infinite
// value is the string "inf"; a value that does not exist is null. Names that are no UTF-8 are written with U+FFFD.
std::string report_json(const Evaluation& e);

// For a terminal: name audit first, then the table, the sums, alarms.
std::string report_text(const Evaluation& e);

// One page without any outside reference: charts as inline SVG, pictures as data URIs.
std::string report_html(const Evaluation& e);

// What result files start with. Throws a usage Error for a name that is none.
void require_result_name(const std::string& name);
// FOLDER/NAME_eval_results.json and NAME_full_info.json as VBench writes them, NAME_provenance.json, NAME.json
// (report_json), NAME_videos.csv, NAME_frames.csv. Creates the folder. Each file appears whole.
void write_results(const Evaluation& e, const std::string& folder, const std::string& name);

// How pictures became colours, and whether VBench's static filter was applied.
std::string decoder_text(const EvalOptions& options);
std::string static_filter_text(const EvalOptions& options);
// What the networks computed in and on, as --compute-dtype and --device take it.
const char* compute_dtype_name(const EvalOptions& options);
const char* device_name(const EvalOptions& options);
// "0.943282", "inf"
std::string format_score(double value);
// Why dimensions are withheld: reason -> names, few reasons, in the order of dimensions().
std::vector<std::pair<std::string, std::vector<std::string>>> withheld_groups(const Evaluation& e);
// Mean drift over the videos that reach a gap: gap in frames -> mean difference in 0..1.
std::map<int64_t, double> mean_drift(const Evaluation& e);

}  // namespace megaslide
