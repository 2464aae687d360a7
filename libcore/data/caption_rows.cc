#include "data/caption_rows.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/progress.h"
#include "model/text_encoder.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

// Captions of one call of the encoder: as many as their rows, all of full length, fill this.
constexpr int64_t kBatchBytes = int64_t{1} << 30;
constexpr int64_t kLargestBatch = 256;

constexpr const char* kNoteKey = "caption_note";
constexpr const char* kEncoderKey = "text_encoder";

std::string note_of(const SafetensorsFile& file) {
  const auto it = file.metadata().find(kNoteKey);
  return it == file.metadata().end() ? std::string() : it->second;
}

HostTensor copy_of(const TensorView& v) {
  HostTensor t(v.dtype, v.shape);
  if (v.bytes() > 0) std::memcpy(t.data(), v.data, static_cast<size_t>(v.bytes()));
  return t;
}

}  // namespace

CaptionRows::CaptionRows(std::string cache, std::map<std::string, std::string> clip_with) : cache_(std::move(cache)), clip_with_(std::move(clip_with)) {}

bool CaptionRows::has(const std::string& hash) {
  std::error_code ignored;
  try {
    if (fs::exists(file(hash), ignored)) {
      require_intact_text(SafetensorsFile::open(file(hash)));
      return true;
    }
    const auto it = clip_with_.find(hash);
    if (it == clip_with_.end()) return false;
    const SafetensorsFile clip = SafetensorsFile::open(cached_clip_file(cache_, it->second));
    require_intact({clip, clip.view("latent"), clip.view("text")});
    return true;
  } catch (const Error&) {  // damaged: encoded again
    fs::remove(file(hash), ignored);
    clip_with_.erase(hash);
    return false;
  }
}

bool CaptionRows::empty_is_there(const std::string& identity) const {
  try {
    const SafetensorsFile f = SafetensorsFile::open(empty_text_file(cache_));
    require_intact_text(f);
    const auto it = f.metadata().find(kEncoderKey);
    return it != f.metadata().end() && it->second == identity;
  } catch (const Error&) {
    return false;
  }
}

int64_t CaptionRows::provide(const std::map<std::string, std::string>& captions, const ModelParts& parts, DType dtype, ThreadPool& pool, StopToken stop) {
  std::vector<std::pair<std::string, std::string>> missing;
  for (const auto& [hash, text] : captions)
    if (!has(hash)) missing.emplace_back(hash, text);
  const bool empty = !empty_is_there(text_encoder_identity(parts));
  if (!missing.empty() || empty) encode(missing, empty, parts, dtype, pool, stop);
  return static_cast<int64_t>(missing.size());
}

void CaptionRows::encode(const std::vector<std::pair<std::string, std::string>>& captions, bool empty, const ModelParts& parts, DType dtype, ThreadPool& pool,
                         StopToken stop) {
  std::error_code failure;
  fs::create_directories(cache_ + "/captions", failure);
  if (failure) throw Error(fmt::format("{}/captions: cannot make the folder: {}", cache_, failure.message()), "choose a folder that can be written");
  const auto encoder = make_text_encoder(parts, dtype);
  const auto batch = static_cast<size_t>(std::clamp<int64_t>(kBatchBytes / std::max<int64_t>(1, parts.config.text_len * parts.config.text_dim * 4), 1, kLargestBatch));
  Progress progress("captions", static_cast<double>(captions.size()), "captions");
  for (size_t at = 0; at < captions.size() || empty; at += batch) {
    stop.throw_if_requested();
    std::vector<std::string> prompts;
    for (size_t i = at; i < std::min(at + batch, captions.size()); ++i) prompts.push_back(captions[i].second);
    if (empty) prompts.emplace_back();
    const std::vector<EncodedText> encoded = encoder->encode_all(pool, prompts);
    if (empty) write_cached_text(empty_text_file(cache_), encoded.back().rows.view(), {{kEncoderKey, encoder->identity()}});
    for (size_t i = 0; i < prompts.size() - (empty ? 1 : 0); ++i) {
      std::map<std::string, std::string> metadata;
      const EncodedText& e = encoded[i];
      if (e.cut > 0) metadata[kNoteKey] = fmt::format("the caption has {} tokens, the model reads {}: its end is cut off", static_cast<int64_t>(e.ids.size()) + e.cut, e.ids.size());
      write_cached_text(file(captions[at + i].first), e.rows.view(), metadata);
      progress.add(1);
    }
    empty = false;
  }
  progress.finish();
}

CaptionRows::Rows CaptionRows::rows(const std::string& hash) const {
  std::error_code ignored;
  const std::string from = fs::exists(file(hash), ignored) ? file(hash) : cached_clip_file(cache_, clip_with_.at(hash));
  const SafetensorsFile f = SafetensorsFile::open(from);
  return {copy_of(f.view("text")), note_of(f)};
}

void CaptionRows::forget(const std::string& hash) {
  std::error_code ignored;
  fs::remove(file(hash), ignored);
  fs::remove(cache_ + "/captions", ignored);  // once it is empty
}

}  // namespace megaslide
