// Lists of videos in files (inputs.h describes them).
#pragma once
#include <map>
#include <string>
#include <vector>

namespace megaslide {

// One video as its manifest states it: key -> value, keys as in the file, "path" under that name. `dimension` holds one
// name a line.
using ManifestRow = std::map<std::string, std::string>;

bool is_manifest_name(const std::string& path);  // .json, .jsonl, .csv, .txt, any case
std::vector<ManifestRow> read_manifest(const std::string& path);
// The same from its text; the extension of `path` says what it is.
std::vector<ManifestRow> parse_manifest_rows(const std::string& text, const std::string& path);

}  // namespace megaslide
