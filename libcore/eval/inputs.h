// From what a user names on the command line to a list of videos.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace megaslide {

struct VideoItem {
  std::string path;
  std::string name;                     // file name without folder and, for a file, without extension; NFC
  std::string prompt;                   // from a manifest, else the name without "-N"
  std::optional<int64_t> index;         // from a manifest, else N
  bool stated_prompt = false;           // the manifest states the prompt
  std::string style;                    // the phrase that appearance_style compares with, or empty
  std::string reference;                // a video to compare with, or empty
  std::vector<std::string> dimensions;  // that apply to it; empty: all
};

struct InputSet {
  std::vector<VideoItem> items;
  std::vector<std::string> ignored;  // files in the folders that are no videos
  std::vector<std::string> warnings;
};

// Each input is a video file; a folder of pictures (one video); a folder with videos and such folders, at any depth; or
// a manifest:
//   .json   list of paths or of objects; VBench's NAME_full_info.json with its video_list
//   .jsonl  the same, one a line
//   .csv    with a header
//   .txt    one path a line
// Keys of objects and columns: path (or video, file, video_path), prompt (caption, text, prompt_en), index, reference,
// dimension, appearance_style. Paths are relative to the manifest, or else to the working directory. Names starting with a dot are passed
// over. Folders are read in natural order. A path that does not exist becomes an item all the same (opening it fails,
// by name); a manifest that cannot be read throws.
InputSet collect_inputs(const std::vector<std::string>& inputs);

// "a fox runs-3" -> ("a fox runs", 3); a name without "-N" has no index. A final dot of the prompt stays.
struct VideoName {
  std::string prompt;
  std::optional<int64_t> index;
};
VideoName parse_video_name(const std::string& stem);

// Gives every item without one a reference: `reference` itself when it is a video, or a video of the folder `reference`:
// the one of the same name (NFC; any extension), else the one whose name is the item's prompt, else the one whose caption
// (a .txt beside it) is. Returns the paths of items that found none.
std::vector<std::string> assign_references(std::vector<VideoItem>& items, const std::string& reference);

}  // namespace megaslide
