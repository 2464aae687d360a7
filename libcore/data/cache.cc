#include "data/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/sha256.h"
#include "data/caption.h"
#include "io/json.h"
#include "model/text_encoder.h"
#include "model/video_codec.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRemedy = "run encode-clips again";

constexpr const char* kHashKey = "sha256";

std::string content_hash(std::initializer_list<const TensorView*> tensors) {
  Sha256 hash;
  for (const TensorView* v : tensors) hash.update({v->data, static_cast<size_t>(v->bytes())});
  return hash.hex();
}

// Throws where the content is not that of the stored hash, or not finite.
void require_content(const SafetensorsFile& file, std::initializer_list<const TensorView*> tensors) {
  const auto damaged = [&](const std::string& how) { return Error(fmt::format("{}: damaged: {}", file.path(), how), kRemedy); };
  const auto stored = file.metadata().find(kHashKey);
  if (stored != file.metadata().end() && stored->second != content_hash(tensors)) throw damaged("its content differs from its own SHA-256");
  for (const TensorView* v : tensors) {
    const auto* x = reinterpret_cast<const float*>(v->data);
    if (!std::all_of(x, x + v->elements(), [](float y) { return std::isfinite(y); })) throw damaged("it holds values that are not finite");
  }
}

}  // namespace

CacheIdentity cache_identity(const ModelParts& parts) { return {codec_identity(parts), text_encoder_identity(parts)}; }

void require_latent_cache(const std::string& dir, const std::string& remedy) {
  std::error_code ignored;
  if (!fs::exists(cache_index_file(dir), ignored)) throw Error(fmt::format("{}: not a latent cache: index.json is missing", dir), remedy);
}

LatentCache LatentCache::open(const std::string& dir) {
  require_latent_cache(dir, "make one with encode-clips");
  try {
    return read_index(dir);
  } catch (const Error& e) {
    throw Error(e.message(), kRemedy);
  }
}

LatentCache LatentCache::read_index(const std::string& dir) {
  const std::string path = cache_index_file(dir);
  CacheIndex index = parse_cache_index(read_file(path, kMaxJsonBytes), path);
  LatentCache cache;
  cache.dir_ = dir;
  cache.identity_ = std::move(index.identity);
  cache.clips_ = std::move(index.clips);
  std::error_code ignored;
  for (const CachedClip& c : cache.clips_)
    if (const std::string file = cached_clip_file(dir, c.key); !fs::exists(file, ignored)) throw Error(file + ": the index names this file, but it is missing", kRemedy);
  if (cache.clips_.empty()) throw Error(dir + ": the cache holds no clip", kRemedy);
  return cache;
}

LatentCache::Clip LatentCache::clip(size_t i) const {
  const CachedClip& info = clips_.at(i);
  const std::string path = cached_clip_file(dir_, info.key);
  Clip c{SafetensorsFile::open(path), {}, {}};
  c.latent = c.file.view("latent");
  c.text = c.file.view("text");
  if (c.latent.dtype != DType::kF32 || c.latent.shape != info.latent)
    throw Error(fmt::format("{}: latent is {} {}, the index says F32 {}", path, dtype_name(c.latent.dtype), to_string(c.latent.shape), to_string(info.latent)), kRemedy);
  if (c.text.dtype != DType::kF32 || c.text.shape.size() != 2 || c.text.shape[0] != info.text_rows)
    throw Error(fmt::format("{}: text is {} {}, the index says F32 [{}, text_dim]", path, dtype_name(c.text.dtype), to_string(c.text.shape), info.text_rows), kRemedy);
  return c;
}

void LatentCache::require_model(const ModelParts& parts) const {
  const CacheIdentity wanted = cache_identity(parts);
  const auto require = [&](const char* what, const std::string& has, const std::string& wants) {
    if (has != wants)
      throw Error(fmt::format("{}: made for {} \"{}\", but the model \"{}\" uses \"{}\"", dir_, what, has, parts.config.name, wants),
                  "run encode-clips with this model into a new folder");
  };
  require("the codec", identity_.codec, wanted.codec);
  require("the text encoder", identity_.text_encoder, wanted.text_encoder);
}

void require_intact(const LatentCache::Clip& clip) {
  if (clip.latent.dtype != DType::kF32 || clip.latent.shape.size() != 4 || clip.text.dtype != DType::kF32 || clip.text.shape.size() != 2)
    throw Error(fmt::format("{}: damaged: latent {} and text {} are no F32 [C,T,h,w] and [rows, text_dim]", clip.file.path(), to_string(clip.latent.shape),
                            to_string(clip.text.shape)),
                kRemedy);
  require_content(clip.file, {&clip.latent, &clip.text});
}

void require_intact_text(const SafetensorsFile& file) {
  const TensorView text = file.view("text");
  if (text.dtype != DType::kF32 || text.shape.size() != 2)
    throw Error(fmt::format("{}: damaged: text {} is no F32 [rows, text_dim]", file.path(), to_string(text.shape)), kRemedy);
  require_content(file, {&text});
}

void require_text_of(const LatentCache::Clip& clip, const ModelConfig& model) {
  const Shape& text = clip.text.shape;
  if (text[0] > model.text_len || text[1] != model.text_dim)
    throw Error(fmt::format("{}: text is {}, the model reads up to {} rows of {}", clip.file.path(), to_string(text), model.text_len, model.text_dim),
                "run encode-clips with this model into a new folder");
}

std::vector<LatentCache::Bucket> LatentCache::buckets() const {
  std::map<Shape, std::vector<size_t>> by_shape;
  for (size_t i = 0; i < clips_.size(); ++i) by_shape[clips_[i].latent].push_back(i);
  std::vector<Bucket> out;
  out.reserve(by_shape.size());
  for (auto& [shape, clips] : by_shape) out.push_back({shape, std::move(clips)});
  return out;
}

std::string cached_clip_file(const std::string& dir, const std::string& key) { return dir + "/clips/" + key + ".safetensors"; }

void write_cached_clip(const std::string& dir, const std::string& key, const TensorView& latent, const TensorView& text,
                       std::map<std::string, std::string> metadata) {
  metadata[kHashKey] = content_hash({&latent, &text});
  write_safetensors(cached_clip_file(dir, key), {{"latent", latent}, {"text", text}}, metadata);
}

std::string empty_text_file(const std::string& dir) { return dir + "/" + kEmptyTextFile; }

void write_cached_text(const std::string& path, const TensorView& text, std::map<std::string, std::string> metadata) {
  metadata[kHashKey] = content_hash({&text});
  write_safetensors(path, {{"text", text}}, metadata);
}

CacheLock::CacheLock(const std::string& dir) {
  const std::string path = dir + "/.lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw system_error("open", path, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    const std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, pid.data(), pid.size(), 0) < 0) return;  // the number is for people only
    return;
  }
  const int reason = errno;
  char other[24] = {};
  if (::pread(fd_, other, sizeof other - 1, 0) < 0) other[0] = 0;
  if (reason != EWOULDBLOCK) return;  // a file system without locks: as before there were any
  ::close(fd_);
  throw Error(fmt::format("{}: another encode-clips is writing this cache (process {})", dir, trim(other)), "wait until it has ended, or choose another folder");
}

CacheLock::~CacheLock() { ::close(fd_); }  // the file stays: removing it would let two processes lock two files

void write_cache_index(const std::string& dir, const CacheIdentity& identity, const std::vector<CachedClip>& clips) {
  write_file_atomic(cache_index_file(dir), cache_index_text({identity, clips}));
}

}  // namespace megaslide
