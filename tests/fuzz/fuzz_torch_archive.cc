// A .pth archive: the zip directory, its pickle, and the bytes of every tensor.
#include "io/torch_file.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMost = 32;  // tensors read: many may share a storage
  fuzz::accepts([&] {
    const TorchFile file = TorchFile::parse(std::as_bytes(std::span(data, size)), "x.pth");
    for (size_t i = 0; i < std::min(kMost, file.tensors().size()); ++i) {
      const TorchTensor& t = file.tensors()[i];
      int64_t bytes = 0;
      file.stream(t, [&](std::span<const std::byte> piece) { bytes += static_cast<int64_t>(piece.size()); });
      MS_CHECK(bytes == element_count(t.shape) * dtype_bytes(t.dtype), "{}", t.name);
    }
  });
  return 0;
}
