#include "io/part_names.h"

#include "base/error.h"
#include "base/json_cursor.h"

namespace megaslide {

void match_part(const TensorSource& source, PartCheckpoint& part, const std::string& what) {
  part.scales = find_fp8_scales(source);
  std::vector<std::string> problems;
  size_t used = 0;
  for (const PartTensor& t : part.tensors) {
    const std::string name = part.prefix + (part.original ? t.original : t.name);
    const TensorSource::Entry* e = source.find(name);
    if (!e) {
      problems.push_back(fmt::format("missing: {} {}", name, to_string(t.shape)));
    } else if (e->shape != t.shape) {
      problems.push_back(fmt::format("wrong shape: {} is {}, expected {}", name, to_string(e->shape), to_string(t.shape)));
    } else if (e->dtype != DType::kF32 && e->dtype != DType::kBF16 && e->dtype != DType::kF16 && e->dtype != DType::kF64 && !is_fp8(e->dtype)) {
      problems.push_back(fmt::format("unusable type: {} is {}", name, dtype_name(e->dtype)));
    }
    ++used;
    part.source[t.name] = name;
  }
  part.has_more = used < source.tensors().size();
  if (problems.empty()) return;
  std::string text;
  for (size_t i = 0; i < problems.size() && i < 40; ++i) text += "\n  " + problems[i];
  if (problems.size() > 40) text += fmt::format("\n  … and {} more", problems.size() - 40);
  throw Error(fmt::format("{}: not the tensors of {}: {} findings{}", source.path(), what, problems.size(), text), "fetch the file again, complete");
}

}  // namespace megaslide
