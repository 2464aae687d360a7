// Small JSON documents of ours and of others, read strictly: UTF-8, no duplicate keys, bounded depth, positions in
// messages.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace megaslide {

// Throws Error "SOURCE:LINE:COLUMN: ...".
nlohmann::json parse_json(std::string_view text, const std::string& source);
inline constexpr int64_t kMaxJsonBytes = 200'000'000;
nlohmann::json read_json(const std::string& path, int64_t max_bytes = kMaxJsonBytes);

// A value for a message: as JSON in ASCII, cut after 60 characters.
std::string short_json(const nlohmann::json& value);

// Reads an object field by field and collects what is wrong, so that one message lists everything:
//   JsonFields f(json, "manifest.json: config");
//   f.read("dim", config.dim);  f.read_optional("name", config.name);  f.finish();
class JsonFields {
 public:
  // `from` must live as long as this. Not an object: one finding.
  JsonFields(const nlohmann::json& from, std::string source);

  void read(const char* key, int64_t& value);      // integers only
  void read(const char* key, uint64_t& value);
  void read(const char* key, double& value);       // any number
  void read(const char* key, bool& value);
  void read(const char* key, std::string& value);
  template <class T, size_t N>
  void read(const char* key, std::array<T, N>& value) {
    for (size_t i = 0; i < N; ++i)
      if (const nlohmann::json* e = element(key, i, N)) assign(key, *e, value[i]);
  }
  // One of `names`; its index goes to `value`.
  void read_choice(const char* key, size_t& value, const std::vector<std::string>& names);
  const nlohmann::json* find(const char* key);  // marks it as known; nullptr when absent
  const nlohmann::json& object(const char* key);  // an empty object, and a finding, when absent or of another type
  const nlohmann::json& array(const char* key);
  void problem(const std::string& text) { problems_.push_back(text); }
  void allow_unknown() { unknown_allowed_ = true; }
  // The findings, unknown keys among them.
  std::vector<std::string> problems();
  void finish();  // throws Error "SOURCE: first; second; …" when there is any

 private:
  void assign(const char* key, const nlohmann::json& from, int64_t& value);
  void assign(const char* key, const nlohmann::json& from, double& value);
  const nlohmann::json* element(const char* key, size_t index, size_t count);
  const nlohmann::json* required(const char* key);

  const nlohmann::json& json_;
  std::string source_;
  std::vector<std::string> known_, problems_;
  bool unknown_allowed_ = false;
};

}  // namespace megaslide
