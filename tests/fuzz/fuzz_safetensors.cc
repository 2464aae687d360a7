// A safetensors file: its header and layout, every tensor's bytes, and the header written anew.
#include "io/safetensors_header.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file = fuzz::text_of(data, size);
  SafetensorsLayout layout;
  if (!fuzz::accepts([&] { layout = parse_safetensors_file(file, "x.safetensors"); })) return 0;
  for (const std::string& w : layout.header.warnings) fuzz::require_printable(w);
  int64_t at = 0;
  std::vector<SafetensorsEntry> entries;
  for (const TensorInfo& t : layout.header.tensors) {
    MS_CHECK(t.begin == at && t.end >= t.begin, "{}", t.name);
    at = t.end;
    const TensorView view{t.dtype, t.shape, reinterpret_cast<const std::byte*>(data) + layout.data + t.begin};
    MS_CHECK(view.bytes() == t.end - t.begin, "{}", t.name);
    fuzz::accepts([&] { HostTensor::f32_from(view); });
    entries.push_back({t.name, t.dtype, t.shape});
  }
  MS_CHECK(layout.data + at == static_cast<int64_t>(size));
  const std::string again = make_safetensors_header(entries, layout.header.metadata, 8);
  const SafetensorsHeader second = parse_safetensors_header(std::string_view(again).substr(8), static_cast<uint64_t>(at), "again");
  MS_CHECK(second.tensors.size() == entries.size() && second.metadata == layout.header.metadata);
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorInfo &a = layout.header.tensors[i], &b = second.tensors[i];
    MS_CHECK(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin && a.end == b.end, "{}", a.name);
  }
  return 0;
}
