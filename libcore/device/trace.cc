#include "device/device.h"

#include <fmt/format.h>

namespace megaslide {
namespace {
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  return out;
}
}  // namespace

std::string trace_json(const std::vector<TraceSpan>& spans, const std::vector<std::string>& phases, const std::string& process) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += fmt::format(R"({{"ph":"M","pid":1,"name":"process_name","args":{{"name":"{}"}}}})", escaped(process));
  for (int k = 0; k < kStreamKinds; ++k)
    out += fmt::format(",\n" R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", k + 1,
                       stream_kind_name(static_cast<StreamKind>(k)));
  for (const auto& s : spans)
    out += fmt::format(",\n" R"({{"ph":"X","pid":1,"tid":{},"name":"{}","cat":"{}","ts":{:.3f},"dur":{:.3f},"args":{{"phase":"{}"}}}})",
                       static_cast<int>(s.stream) + 1, escaped(s.name), stream_kind_name(s.stream), s.begin * 1e6,
                       (s.end - s.begin) * 1e6, escaped(phases[static_cast<size_t>(s.phase)]));
  return out + "\n]}\n";
}

}  // namespace megaslide
