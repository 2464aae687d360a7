#include "device/trace.h"

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

std::string trace_json(std::span<const TraceSpan> spans, std::span<const TraceStep> steps, const std::vector<std::string>& phases,
                       const std::string& process) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += fmt::format(R"({{"ph":"M","pid":1,"name":"process_name","args":{{"name":"{}"}}}})", escaped(process));
  const auto track = [&](int id, std::string_view name) {
    out += fmt::format(",\n" R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", id, name);
  };
  constexpr int kSteps = 1, kFirstStream = 2;
  track(kSteps, "step");
  for (int k = 0; k < kStreamKinds; ++k) track(kFirstStream + k, stream_kind_name(static_cast<StreamKind>(k)));
  const auto event = [&](int id, std::string_view name, std::string_view category, double begin, double end, const std::string& arguments) {
    out += fmt::format(",\n" R"({{"ph":"X","pid":1,"tid":{},"name":"{}","cat":"{}","ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})", id, escaped(name),
                       category, begin * 1e6, (end - begin) * 1e6, arguments);
  };
  for (const TraceStep& s : steps)
    event(kSteps, fmt::format("step {}", s.number), "step", s.begin, s.end,
          fmt::format(R"("wait_upload":{:.6g},"wait_download":{:.6g},"wait_optimizer":{:.6g},"wait_disk":{:.6g},"wait_data":{:.6g})", s.wait_upload,
                      s.wait_download, s.wait_optimizer, s.wait_disk, s.wait_data));
  for (const TraceSpan& s : spans)
    event(kFirstStream + static_cast<int>(s.stream), s.name, stream_kind_name(s.stream), s.begin, s.end,
          fmt::format(R"("phase":"{}")", escaped(phases[static_cast<size_t>(s.phase)])));
  return out + "\n]}\n";
}

}  // namespace megaslide
