#include "io/tensor_convert.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "io/nonfinite.h"

namespace megaslide {
namespace {

constexpr size_t kListed = 20;
constexpr int64_t kBlock = 1 << 14;  // elements converted at a time: their fp32 values stay in the cache

}  // namespace

void TensorConverter::note(const std::string& name, const NonFiniteScan& scan) {
  if (scan.first() < 0) return;
  std::string what;
  if (scan.nans()) what = fmt::format("{} NaN", scan.nans());
  if (scan.infinities()) what += fmt::format("{}{} {}", what.empty() ? "" : " and ", scan.infinities(), scan.infinities() == 1 ? "infinity" : "infinities");
  findings_.push_back(fmt::format("{}: {}, the first at index {}", name, what, scan.first()));
}

void TensorConverter::scan(const std::string& name) {
  NonFiniteScan scan(source_.find(name)->dtype);
  source_.stream(name, [&](std::span<const std::byte> piece) { scan.add(piece); });
  note(name, scan);
}

void TensorConverter::convert(const TensorRecipe& recipe, const std::function<void(std::span<const std::byte>)>& sink) {
  const DType from = source_.find(recipe.source)->dtype;
  NonFiniteScan scan(recipe.dtype);
  if (from == recipe.dtype && recipe.scale.empty()) {
    source_.stream(recipe.source, [&](std::span<const std::byte> piece) {
      scan.add(piece);
      sink(piece);
    });
    return note(recipe.name, scan);
  }
  const HostTensor scales = recipe.scale.empty() ? HostTensor() : HostTensor::f32_from(source_.read(recipe.scale).view());
  const int64_t rows = scales.empty() ? 1 : scales.elements();
  const int64_t row = std::max<int64_t>(1, element_count(recipe.shape) / std::max<int64_t>(1, rows));
  const int64_t width = dtype_bytes(from), stored = dtype_bytes(recipe.dtype);
  std::vector<float> values(kBlock);
  std::vector<std::byte> out(static_cast<size_t>(kBlock * stored));
  int64_t at = 0;  // element
  source_.stream(recipe.source, [&](std::span<const std::byte> piece) {
    const int64_t n = static_cast<int64_t>(piece.size()) / width;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      convert_to_f32(values.data(), piece.data() + begin * width, from, count);
      if (!scales.empty())
        for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] *= scales.f32()[rows == 1 ? 0 : (at + i) / row];
      convert_from_f32(out.data(), recipe.dtype, values.data(), count);
      const std::span<const std::byte> done(out.data(), static_cast<size_t>(count * stored));
      scan.add(done);
      sink(done);
      at += count;
    }
  });
  note(recipe.name, scan);
}

void TensorConverter::report() const {
  if (findings_.empty()) return;
  std::string text;
  for (size_t i = 0; i < findings_.size() && i < kListed; ++i) text += "\n  " + findings_[i];
  if (findings_.size() > kListed) text += fmt::format("\n  … and {} more", findings_.size() - kListed);
  log_warning("{}: {}: {} with values that are no numbers; a model trained or sampled from them gives nothing of use:{}", source_.path(), label_,
              findings_.size() == 1 ? "a tensor" : fmt::format("{} tensors", findings_.size()), text);
}

}  // namespace megaslide
