// Cases of kind "dataset": folders of clips with captions beside them.
#include <algorithm>
#include <filesystem>

#include "clips.h"

namespace megaslide::cases {
namespace {

namespace fs = std::filesystem;

std::string buckets(Case& c, const std::string& text) {
  const std::string path = c.work("buckets-" + std::to_string(std::hash<std::string>{}(text) % 100000));
  write_text(path, text);
  return path;
}

std::string dataset_warnings(const Encoded& e) {
  std::string all;
  if (e.report.is_object())
    for (const Json& w : e.report.at("warnings")) all += w.get<std::string>() + "\n";
  return all;
}

void expect_caption(Case& c, const Encoded& e, const std::string& path, const std::string& caption) {
  const Json* clip = e.find(path);
  if (!c.expect(clip != nullptr && clip->at("status") != "dropped", path + " is not kept" + (clip ? ": " + reason_of(*clip) : ""))) return;
  c.expect(clip->at("caption") == caption, path + ": caption " + clip->at("caption").dump() + ", expected \"" + caption + "\"");
}

void file_names(Case& c) {
  const std::string rule = buckets(c, "[5]");
  const Encoded outside = encode(c, "outside", {c.file()}, {"--buckets", rule});
  const Encoded inside = encode(c, "inside", {"."}, {"--buckets", rule}, {.folder = c.file()});
  for (const Encoded* e : {&outside, &inside}) {
    c.expect_status(e->run, 0, "encode-clips");
    for (const auto& [name, caption] : c.check().at("kept").items()) {
      expect_caption(c, *e, name, caption);
      if (const Json* clip = e->find(name)) c.expect(clip->at("frames_used") == c.check().at("frames"), name + ": frames");
    }
    for (const Json& name : c.check().at("ignored")) c.expect(e->find(name) == nullptr, name.dump() + " is taken for a clip");
    c.expect(e->kept().size() == c.check().at("kept").size(), std::to_string(e->kept().size()) + " kept");
  }
  c.saw(std::to_string(outside.kept().size()) + " kept from outside, " + std::to_string(inside.kept().size()) + " from inside, each with its caption");
}

void caption_encodings(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, {"--buckets", buckets(c, "[5]")});
  c.expect_status(e.run, 0, "encode-clips");
  for (const auto& [name, caption] : c.check().at("captions").items()) expect_caption(c, e, name + ".mp4", caption);
  const Json* cp = e.find("cp1252.mp4");
  if (c.expect(cp != nullptr, "cp1252.mp4 is not in the report") && cp->at("status") != "dropped") {
    expect_caption(c, e, "cp1252.mp4", c.check().at("cp1252_if_kept"));
    c.expect(warnings_of(*cp).find("offset 7") != std::string::npos && warnings_of(*cp).find("Windows-1252") != std::string::npos, "no warning: " + warnings_of(*cp));
    c.saw("cp1252: " + warnings_of(*cp).substr(0, warnings_of(*cp).find('\n')));
  } else if (cp != nullptr) {
    c.expect(reason_of(*cp).find('7') != std::string::npos, "no offset: " + reason_of(*cp));
  }
  const Json* nul = e.find("nul.mp4");
  c.expect(nul != nullptr && (nul->at("status") == "dropped" || (warnings_of(*nul).find("NUL") != std::string::npos && nul->at("caption").get<std::string>().find('\0') == std::string::npos)), "nul.mp4");
  if (nul != nullptr) c.saw("nul: " + warnings_of(*nul).substr(0, warnings_of(*nul).find('\n')));
}

void captions_missing(Case& c) {
  const std::string rule = buckets(c, "[5]");
  const Encoded e = encode(c, "cache", {c.file()}, {"--buckets", rule});
  c.expect_status(e.run, 0, "encode-clips");
  std::vector<std::string> keys;
  for (const auto& [name, caption] : c.check().at("kept").items()) {
    expect_caption(c, e, name, caption);
    const Json* clip = e.find(name);
    if (clip == nullptr || clip->at("status") == "dropped") continue;
    keys.push_back(clip->at("key"));
    c.expect(stamps_of(*clip).front() == c.check().at("first_stamp").at(name), name + ": another clip's pictures");
  }
  c.expect(keys.size() == 2 && keys[0] != keys[1], "equal base names share an entry");
  const std::vector<std::string> reasons = {"no caption", "empty", "blank"};
  for (size_t i = 0; i < reasons.size(); ++i) expect_dropped(c, e, c.check().at("dropped")[i], reasons[i]);
  c.expect(dataset_warnings(e).find("no-clip.txt: a caption without a clip") != std::string::npos, "the stray caption is not listed");
  const Encoded loose = encode(c, "loose", {c.file()}, {"--buckets", rule, "--allow-empty-captions"});
  c.expect(loose.kept().size() == 5, "with empty captions: " + std::to_string(loose.kept().size()) + " kept");
  for (const Json& name : c.check().at("dropped")) expect_caption(c, loose, name, "");
}

void same_base_name(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, {"--buckets", buckets(c, "[1, 5]")});
  c.expect_status(e.run, 0, "encode-clips");
  size_t shared = 0;
  for (const auto& [name, stamps] : c.check().at("entries").items()) {
    const Json* clip = e.find(name);
    expect_clip(c, clip, static_cast<int64_t>(stamps.size()), ints(stamps));
    if (clip != nullptr && warnings_of(*clip).find("shares its caption file") != std::string::npos) ++shared;
  }
  size_t files = 0;
  for (const auto& f : fs::directory_iterator(e.cache + "/clips")) files += f.path().extension() == ".safetensors" ? 1 : 0;
  c.expect(files == 4, std::to_string(files) + " entries in the cache");
  c.expect(shared == 3, std::to_string(shared) + " warnings of a shared caption");
}

void lengths(Case& c) {
  std::string list;
  for (const Json& n : c.check().at("buckets")) list += n.dump() + " ";
  const Encoded e = encode(c, "cache", {c.file()}, {"--buckets", buckets(c, list), "--fps", "16"});
  c.expect_status(e.run, 0, "encode-clips");
  const auto bucket_of = [&](int64_t n) {
    int64_t best = 0;
    for (const Json& b : c.check().at("buckets"))
      if (b.get<int64_t>() <= n) best = std::max(best, b.get<int64_t>());
    return best;
  };
  size_t right = 0;
  for (const auto& [name, want] : c.check().at("clips").items()) {
    const Json* clip = e.find(name);
    if (!c.expect(clip != nullptr && clip->at("status") != "dropped", name + " is not kept")) continue;
    const int64_t n = clip->at("frames_retimed"), used = clip->at("frames_used");
    const bool ok = clip->at("frames_decoded") == want.at("frames") && (n == want.at("retimed") || n == want.at("ffmpeg_fps_filter")) &&
                    (used == want.at("bucket") || used == bucket_of(want.at("ffmpeg_fps_filter"))) && clip->at("frames_left_over") == n - used;
    c.expect(ok, name + ": " + std::to_string(n) + " frames, bucket " + std::to_string(used) + ", expected " + want.dump());
    right += ok ? 1 : 0;
  }
  c.expect(e.report.is_object() && e.report.at("buckets").size() == c.check().at("buckets").size(), "no summary for each bucket");
  const Encoded none = encode(c, "none", {c.file()}, {"--buckets", buckets(c, "[161]"), "--fps", "16"});
  c.expect_status(none.run, 1, "nothing fits");
  c.expect(none.run.says("the longest clip has 81 frames, the smallest bucket 161"), "no line with both lengths: " + none.run.err.substr(0, 300));
  c.saw(std::to_string(right) + " clips in their buckets; nothing fits: the longest clip has 81 frames, the smallest bucket 161");
}

void sizes(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, {"--buckets", buckets(c, "[5]")});
  c.expect_status(e.run, 0, "encode-clips");
  const auto optional = [&](const std::string& name) {
    const Json& list = c.check().at("may_be_dropped");
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const auto& [name, size] : c.check().at("crop").items()) {
    const Json* clip = e.find(name + ".mkv");
    if (!c.expect(clip != nullptr, name + " is not in the report")) continue;
    if (clip->at("status") == "dropped") {
      c.expect(optional(name), name + " is dropped: " + reason_of(*clip));
      continue;
    }
    c.expect(clip->at("size_used") == size, name + " became " + clip->at("size_used").dump());
    const int64_t columns = clip->at("size_decoded")[0].get<int64_t>() - size[0].get<int64_t>(), rows = clip->at("size_decoded")[1].get<int64_t>() - size[1].get<int64_t>();
    for (const int64_t cut : {columns, rows})
      if (cut > 0) c.expect(reason_of(*clip).find(std::to_string(cut) + " of ") != std::string::npos, name + ": the cut is not stated: " + reason_of(*clip));
    c.saw(name + " -> " + clip->at("size_used").dump());
  }
  const Json* plain = e.find("160x96.mkv");
  c.expect(plain != nullptr && plain->at("status") == "kept" && stamps_of(*plain) == std::vector<int>({0, 1, 2, 3, 4}), "160x96 is not untouched");
  expect_dropped(c, e, "8x8.mkv", "16");
}

void mixed_media(Case& c) {
  const Encoded e = encode(c, "cache", {c.file()}, {"--buckets", buckets(c, "[1, 9, 17]")});
  c.expect_status(e.run, 0, "encode-clips");
  const Json* movie = e.find("movie.mp4");
  c.expect(movie != nullptr && movie->at("frames_used") == c.check().at("movie.mp4"), "movie.mp4");
  const Json* folder = e.find("frames-as-clip");
  if (expect_clip(c, folder, 12, ints(c.check().at("frames-as-clip")))) c.expect(folder->at("frames_used") == 9, "bucket of the folder");
  const Json* still = e.find("still.jpg");
  if (expect_clip(c, still, 1, ints(c.check().at("still.jpg")))) c.expect(still->at("frames_used") == 1, "bucket of the still");
  c.expect(e.find("notes.md") == nullptr && e.report.at("clips").size() == 3, "entries: " + std::to_string(e.report.at("clips").size()));
}

void links(Case& c) {
  c.expect_status(c.run({"tar", "-xf", c.file(), "-C", c.work()}), 0, "tar");
  const Encoded e = encode(c, "cache", {c.work("links")}, {"--buckets", buckets(c, "[5]")}, {.seconds = 20});
  c.expect_status(e.run, 0, "encode-clips");
  c.expect(e.kept().size() == c.check().at("distinct_clips"), std::to_string(e.kept().size()) + " kept");
  for (const Json& name : c.check().at("dropped")) expect_dropped(c, e, name, "broken link");
  c.expect(e.run.both().find("same file") != std::string::npos || dataset_warnings(e).find("link") != std::string::npos, "links are ignored without a word");
  for (const Json& clip : e.report.at("clips"))
    if (reason_of(clip).find("same file") != std::string::npos) c.saw(clip.at("path").get<std::string>() + ": " + reason_of(clip));
}

}  // namespace

void add_dataset_cases(CaseTable& table) {
  table["file-names"] = file_names;
  table["caption-encodings"] = caption_encodings;
  table["captions-missing"] = captions_missing;
  table["same-base-name"] = same_base_name;
  table["lengths-buckets"] = lengths;
  table["sizes"] = sizes;
  table["mixed-media"] = mixed_media;
  table["links"] = links;
}

}  // namespace megaslide::cases
