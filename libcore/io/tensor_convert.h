// Foreign tensors on their way into a file of ours: type conversion, FP8 scales, and a look at every value.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/tensor_source.h"

namespace megaslide {

// What is written, and from what.
struct TensorRecipe {
  std::string name;
  DType dtype = DType::kF32;  // F32, BF16 or F16, or the source's own type
  Shape shape;
  std::string source;         // name in the source
  std::string scale;          // of an FP8 tensor; empty for others
};

class TensorConverter {
 public:
  // `label` names the network in warnings: "transformer_2".
  TensorConverter(const TensorSource& source, std::string label) : source_(source), label_(std::move(label)) {}
  // Same type: the source's bytes. Otherwise through fp32, times the scale, rounded to nearest.
  void convert(const TensorRecipe& recipe, const std::function<void(std::span<const std::byte>)>& sink);
  void scan(const std::string& name);  // looks at the source's tensor without writing it
  // Warns of tensors with NaN or infinity, the first ones by name. Call once, at the end.
  void report() const;

 private:
  void note(const std::string& name, const class NonFiniteScan& scan);

  const TensorSource& source_;
  std::string label_;
  std::vector<std::string> findings_;
};

}  // namespace megaslide
