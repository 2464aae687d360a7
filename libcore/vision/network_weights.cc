#include "vision/network_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "config/nearest.h"
#include "io/nonfinite.h"

namespace megaslide {
namespace {

// Names in a message: enough to see the pattern of what is wrong.
constexpr size_t kListed = 8;

std::string listed(const std::vector<std::string>& parts) {
  std::string text = fmt::format("{}", fmt::join(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(std::min(parts.size(), kListed)), ", "));
  if (parts.size() > kListed) text += fmt::format(" and {} more", parts.size() - kListed);
  return text;
}

}  // namespace

NetworkWeights NetworkWeights::open(const std::string& path, const std::string& prefix) {
  NetworkWeights w(TensorSource::open(path));
  for (const auto& [name, entry] : w.source_.tensors()) {
    const std::string ours = !prefix.empty() && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    if (!w.names_.emplace(ours, name).second)
      throw Error(fmt::format("{}: holds {} both with and without \"{}\"", w.path(), quote_for_message(ours), prefix));
  }
  return w;
}

const Shape& NetworkWeights::shape(const std::string& name) const {
  const auto at = names_.find(name);
  if (at == names_.end()) {
    const std::string near = nearest_name(name, names());
    throw Error(fmt::format("{}: no tensor {}{}", path(), quote_for_message(name),
                            near.empty() ? "" : "; there is " + quote_for_message(near)));
  }
  return source_.find(at->second)->shape;
}

std::vector<std::string> NetworkWeights::names() const {
  std::vector<std::string> out;
  for (const auto& [ours, theirs] : names_) out.push_back(ours);
  return out;
}

void NetworkWeights::require(const std::map<std::string, Shape>& expected, const std::vector<std::string>& ignored) const {
  std::vector<std::string> extra, missing, wrong;
  for (const auto& [name, theirs] : names_) {
    if (!expected.contains(name) && std::ranges::find(ignored, name) == ignored.end()) extra.push_back(quote_for_message(name));
  }
  for (const auto& [name, want] : expected) {
    if (!has(name)) {
      const std::string near = nearest_name(name, names());
      missing.push_back(quote_for_message(name) + (near.empty() || expected.contains(near) ? "" : " (is it " + quote_for_message(near) + "?)"));
      continue;
    }
    const TensorSource::Entry& entry = *source_.find(names_.at(name));
    if (!is_weight_dtype(entry.dtype)) wrong.push_back(fmt::format("{} holds {}", quote_for_message(name), dtype_name(entry.dtype)));
    if (entry.shape != want) wrong.push_back(fmt::format("{} is {}, not {}", quote_for_message(name), to_string(entry.shape), to_string(want)));
  }
  std::vector<std::string> lines;
  if (!missing.empty()) lines.push_back(fmt::format("missing: {}", listed(missing)));
  if (!extra.empty()) lines.push_back(fmt::format("unknown: {}", listed(extra)));
  if (!wrong.empty()) lines.push_back(fmt::format("unfit: {}", listed(wrong)));
  if (!lines.empty())
    throw Error(fmt::format("{}: not the tensors of this network; {}", path(), fmt::join(lines, "; ")),
                "use the published file, with its names as they are");
}

HostTensor NetworkWeights::read(const std::string& name) const {
  shape(name);
  const HostTensor stored = source_.read(names_.at(name), int64_t{4} << 30);
  if (!is_weight_dtype(stored.dtype())) throw Error(fmt::format("{}: {} holds {}", path(), quote_for_message(name), dtype_name(stored.dtype())));
  NonFiniteScan scan(stored.dtype());
  scan.add({stored.data(), static_cast<size_t>(stored.bytes())});
  if (scan.nans() + scan.infinities() > 0)
    throw Error(fmt::format("{}: {} holds {} NaN and {} infinite values, the first at element {}", path(), quote_for_message(name), scan.nans(),
                            scan.infinities(), scan.first()),
                "scores would mean nothing; fetch the file again");
  return HostTensor::f32_from(stored.view());
}

const std::string& NetworkWeights::sha256() const {
  if (sha256_.empty()) sha256_ = sha256_file(path());
  return sha256_;
}

}  // namespace megaslide
