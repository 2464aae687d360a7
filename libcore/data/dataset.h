// Clips with captions in the layouts people use. Nothing is decoded here; a row that cannot be used stays in the list
// with its reason, so captions never move to another clip.
#pragma once
#include <string>
#include <vector>

namespace megaslide {

struct DatasetEntry {
  std::string path;                // for reports: relative to the dataset's folder, as a table writes it
  std::string file;                // to open: a video, a picture, or a folder of pictures
  std::string caption;
  std::string place;               // "metadata.csv:3"; empty for folders
  std::string problem;             // why it cannot be used; empty: it can
  std::vector<std::string> notes;  // what was assumed
};

struct Dataset {
  std::vector<DatasetEntry> entries;
  std::vector<std::string> warnings;  // about the dataset as a whole: captions without a clip, ...
};

struct DatasetOptions {
  bool allow_empty_captions = false;
};

// Each argument is one of
//   a folder                 clips anywhere below, NAME.txt beside NAME.mp4; a folder with nothing but pictures and a
//                            caption FOLDER.txt beside it is one clip; or prompts.txt and videos.txt in it
//   FILE.csv, .tsv           a header with a clip column (video, path, file_name, ...) and a caption column
//   FILE.json                [{...}], {"clips": [{...}]} or {"PATH": "CAPTION"}
//   FILE.jsonl               one {...} a line
//   prompts.txt+videos.txt   line by line, also as two arguments one after the other
//   a video                  NAME.txt beside it
// Paths inside tables are relative to the table. Errors for what makes the whole dataset unusable: a missing file
// (failure), no caption column, unequal numbers of lines (usage).
Dataset read_datasets(const std::vector<std::string>& arguments, const DatasetOptions& options = {});

}  // namespace megaslide
