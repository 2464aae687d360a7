// The pickle inside a .pth archive.
#include "io/torch_pickle.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TorchPickle pickle;
  if (!fuzz::accepts([&] { pickle = read_torch_pickle(fuzz::text_of(data, size), "x.pth"); })) return 0;
  for (const std::string& w : pickle.warnings) fuzz::require_printable(w);
  for (const TorchTensor& t : pickle.tensors) {
    MS_CHECK(!t.storage.empty() && t.storage_bytes >= 0 && t.offset >= 0 && t.shape.size() == t.stride.size());
    const int64_t elements = element_count(t.shape), available = t.storage_bytes / dtype_bytes(t.dtype);
    MS_CHECK(elements >= 0 && elements <= available && t.span() >= 0 && (elements == 0) == (t.span() == 0));
    MS_CHECK(elements == 0 || t.offset + t.span() <= available);
    t.contiguous();
  }
  return 0;
}
