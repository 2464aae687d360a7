#include "text/tokenizer_json.h"

#include <filesystem>

#include "base/atomic_file.h"
#include "base/json_cursor.h"

namespace megaslide {
namespace {

constexpr int64_t kMaxBytes = 128 << 20;  // UMT5's has 17 MB

std::optional<bool> read_model(JsonCursor& c) {
  std::optional<bool> fallback;
  if (c.peek() != '{') {
    c.skip_value();
    return fallback;
  }
  bool first = true;
  std::string key;
  c.begin_object();
  while (c.next_key(first, key)) {
    const char next = c.peek();
    if (key == "byte_fallback" && (next == 't' || next == 'f')) fallback = c.boolean("byte_fallback");
    else c.skip_value();
  }
  return fallback;
}

}  // namespace

std::optional<bool> byte_fallback_of(std::string_view json, const std::string& source) {
  JsonCursor c(json, source);
  std::optional<bool> fallback;
  bool first = true;
  std::string key;
  c.begin_object();
  while (c.next_key(first, key)) {
    if (key == "model") fallback = read_model(c);
    else c.skip_value();
  }
  c.end();
  return fallback;
}

std::optional<bool> byte_fallback_in(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return byte_fallback_of(read_file(path, kMaxBytes), path);
}

}  // namespace megaslide
