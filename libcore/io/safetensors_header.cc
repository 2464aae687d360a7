#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "base/json_cursor.h"
#include "base/utf8.h"
#include "io/foreign_file.h"

namespace megaslide {
namespace {

constexpr uint64_t kMaxInt64 = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

struct Parser {
  JsonCursor cursor;
  SafetensorsHeader header;
  std::vector<size_t> where;  // position of each tensor's entry

  [[noreturn]] void reject(size_t tensor, const std::string& message) const {
    cursor.fail(where[tensor], fmt::format("tensor {}: {}", quote_for_message(header.tensors[tensor].name), message));
  }

  void parse_metadata() {
    if (cursor.null()) return;
    const size_t start = cursor.offset();
    if (cursor.peek() != '{') cursor.fail(start, "__metadata__ must be an object of strings");
    bool first = true;
    std::string key;
    cursor.begin_object();
    while (cursor.next_key(first, key)) {
      if (header.metadata.count(key)) cursor.duplicate_key(cursor.key_offset(), key);
      if (cursor.peek() != '"')
        cursor.fail(cursor.offset(), fmt::format("__metadata__: the value of {} must be a string", quote_for_message(key)));
      header.metadata[key] = cursor.string("a metadata value");
    }
  }

  DType parse_dtype_field() {
    if (cursor.peek() != '"') {
      const size_t at = cursor.offset();
      cursor.skip_value();
      cursor.fail(at, "dtype must be a string");
    }
    const size_t at = cursor.offset();
    const std::string name = cursor.string("dtype");
    if (const auto dtype = parse_dtype(name)) return *dtype;
    cursor.fail(at, "unknown dtype " + quote_for_message(name));
  }

  std::vector<uint64_t> parse_integers(const char* what, size_t limit) {
    std::vector<uint64_t> values;
    bool first = true;
    cursor.begin_array();
    while (cursor.next_element(first)) {
      if (values.size() == limit) cursor.fail(cursor.offset(), fmt::format("{} has more than {} values", what, limit));
      values.push_back(cursor.u64(what));
    }
    return values;
  }

  void parse_tensor(const std::string& name) {
    std::optional<DType> dtype;
    std::optional<std::vector<uint64_t>> shape, offsets;
    where.push_back(cursor.key_offset());
    header.tensors.push_back({name, DType::kU8, {}, 0, 0});
    const size_t index = header.tensors.size() - 1;
    std::set<std::string> fields;
    bool first = true;
    std::string field;
    cursor.begin_object();
    while (cursor.next_key(first, field)) {
      if (!fields.insert(field).second) cursor.duplicate_key(cursor.key_offset(), field);
      if (field == "dtype") {
        dtype = parse_dtype_field();
      } else if (field == "shape") {
        shape = parse_integers("shape", 64);
      } else if (field == "data_offsets") {
        offsets = parse_integers("data_offsets", 2);
        if (offsets->size() != 2) reject(index, "data_offsets needs two values");
      } else {
        header.warnings.push_back(fmt::format("tensor {}: unknown field {} ignored", quote_for_message(name), quote_for_message(field)));
        cursor.skip_value();
      }
    }
    if (!dtype) reject(index, "dtype is missing");
    if (!shape) reject(index, "shape is missing");
    if (!offsets) reject(index, "data_offsets is missing");
    check_tensor(index, *dtype, *shape, (*offsets)[0], (*offsets)[1]);
  }

  // Products in unsigned 64 bits, from the left, as the reference reader forms them.
  void check_tensor(size_t index, DType dtype, const std::vector<uint64_t>& shape, uint64_t begin, uint64_t end) {
    uint64_t elements = 1, bits = 0;
    for (const uint64_t d : shape)
      if (__builtin_mul_overflow(elements, d, &elements)) reject(index, "its number of elements overflows 64 bits");
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_bits(dtype)), &bits))
      reject(index, "its size overflows 64 bits");
    if (bits % 8) reject(index, fmt::format("{} {} values do not fill whole bytes", elements, dtype_name(dtype)));
    if (begin > end) reject(index, fmt::format("data_offsets [{}, {}]: the begin lies after the end", begin, end));
    if (end - begin != bits / 8)
      reject(index, fmt::format("its shape and {} need {} bytes, data_offsets [{}, {}] give {}", dtype_name(dtype), bits / 8,
                                begin, end, end - begin));
    TensorInfo& t = header.tensors[index];
    t.dtype = dtype;
    // A zero-sized tensor may name any extent; it holds no element, so the largest whose product is a signed one stands for
    // more.
    uint64_t product = 1;
    for (const uint64_t d : shape) {
      t.shape.push_back(static_cast<int64_t>(std::min(d, product == 0 ? kMaxInt64 : kMaxInt64 / product)));
      product *= static_cast<uint64_t>(t.shape.back());
    }
    if (end > kMaxInt64) reject(index, fmt::format("data_offsets end at {}, beyond any file", end));
    t.begin = static_cast<int64_t>(begin);
    t.end = static_cast<int64_t>(end);
  }

  // No holes, no overlaps, and the data ends with the file.
  void check_layout(uint64_t data_bytes) {
    std::vector<size_t> order(header.tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto& t = header.tensors;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::tie(t[a].begin, t[a].end, where[a]) < std::tie(t[b].begin, t[b].end, where[b]);
    });
    int64_t expected = 0;
    for (const size_t i : order) {
      if (t[i].begin != expected)
        reject(i, fmt::format("its data begins at {}, where {} was expected: {}", t[i].begin, expected,
                              t[i].begin < expected ? "tensors overlap" : "bytes that belong to no tensor"));
      expected = t[i].end;
    }
    if (static_cast<uint64_t>(expected) != data_bytes)
      throw Error(fmt::format("{}: the header describes {} bytes of tensor data, the file holds {}: {}", cursor.source(), expected, data_bytes,
                              static_cast<uint64_t>(expected) > data_bytes ? fmt::format("{} bytes short", static_cast<uint64_t>(expected) - data_bytes)
                                                                           : fmt::format("{} bytes too many", data_bytes - static_cast<uint64_t>(expected))),
                  static_cast<uint64_t>(expected) > data_bytes ? "the file is cut short: download or copy it again"
                                                               : "bytes follow the last tensor: download or write it again");
    std::vector<TensorInfo> sorted;
    sorted.reserve(order.size());
    for (const size_t i : order) sorted.push_back(std::move(header.tensors[i]));
    header.tensors = std::move(sorted);
  }
};

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else out += c;
  }
  out += '"';
}

// What the user may have meant when this is no safetensors file.
[[noreturn]] void reject_file(const std::string& path, std::string_view file, const std::string& why) {
  const ForeignFile foreign = identify_foreign_file(path, file.substr(0, 512));
  if (foreign.what.empty()) throw Error(fmt::format("{}: not a safetensors file: {}", path, why), "download or copy it again");
  throw Error(fmt::format("{}: not a safetensors file but {} ({})", path, foreign.what, why), foreign.remedy);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes, const std::string& path) {
  Parser parser{JsonCursor(json, path, 8), {}, {}};
  JsonCursor& cursor = parser.cursor;
  if (!json.empty() && json[0] != '{' && cursor.peek() == '{')
    parser.header.warnings.push_back("white space before the header's '{'");
  std::unordered_set<std::string> names;
  bool first = true;
  std::string key;
  cursor.begin_object();
  while (cursor.next_key(first, key)) {
    if (!names.insert(key).second) cursor.duplicate_key(cursor.key_offset(), key);
    if (key == "__metadata__") {
      parser.parse_metadata();
      continue;
    }
    if (const std::string shown = quote_for_message(key); shown.find("\\u") != std::string::npos)
      parser.header.warnings.push_back("a tensor name holds control characters: " + shown);
    parser.parse_tensor(key);
  }
  cursor.end();
  parser.check_layout(data_bytes);
  return std::move(parser.header);
}

SafetensorsLayout parse_safetensors_file(std::string_view file, const std::string& path) {
  if (file.size() < 8) reject_file(path, file, fmt::format("its {} bytes are too short for the 8-byte header length", file.size()));
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(file[i]);
  if (length > kMaxSafetensorsHeader)
    reject_file(path, file, fmt::format("header length {} is larger than the format's {} bytes", length, kMaxSafetensorsHeader));
  if (length > file.size() - 8) reject_file(path, file, fmt::format("its header of {} bytes would end past the file's {}", length, file.size()));
  try {
    return {parse_safetensors_header(file.substr(8, length), file.size() - 8 - length, path), static_cast<int64_t>(length) + 8};
  } catch (const Error& e) {
    if (!e.remedy().empty()) throw;
    throw Error(e.message(), "the file is damaged or was not written as safetensors: download or write it again");
  }
}

std::string make_safetensors_header(const std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata, int64_t alignment) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      append_json_string(json, key);
      json += ':';
      append_json_string(json, value);
    }
    json += '}';
  }
  int64_t offset = 0;
  for (const auto& e : entries) {
    if (json.size() > 1) json += ',';
    append_json_string(json, e.name);
    json += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[", dtype_name(e.dtype));
    for (size_t i = 0; i < e.shape.size(); ++i) json += fmt::format("{}{}", i ? "," : "", e.shape[i]);
    const int64_t bits = element_count(e.shape) * dtype_bits(e.dtype);
    MS_CHECK(bits % 8 == 0, "{} does not fill whole bytes", e.name);
    json += fmt::format("],\"data_offsets\":[{},{}]}}", offset, offset + bits / 8);
    offset += bits / 8;
  }
  json += '}';
  while ((json.size() + 8) % static_cast<size_t>(alignment)) json += ' ';
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(json.size() >> (8 * i));
  return out + json;
}

}  // namespace megaslide
