#include "tests/model/network_driver.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"

namespace megaslide::testing_support {

namespace {

int64_t aligned(int64_t n) { return (n + 255) / 256 * 256; }

int64_t elements(const BatchShape& s, int64_t channels) { return s.rows() * 4 * channels; }

}  // namespace

Buffer::Buffer(int64_t bytes)
    : data_(
          static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(aligned(std::max<int64_t>(bytes, 1)))))),
      size_(bytes) {
  poison();
}

void Buffer::poison() { std::memset(data_.get(), 0xff, static_cast<size_t>(size_)); }

ParameterSource random_parameters(uint64_t seed) {
  return [seed](const std::string& name, const ParamSpec& spec) {
    uint64_t series = 1469598103934665603U;
    for (const char c : name) series = (series ^ static_cast<unsigned char>(c)) * 1099511628211U;
    const Random random(seed, RandomPurpose::kTest);
    const bool vector = spec.shape.size() == 1, ones = spec.init == ParamInit::kOnes;
    int64_t inputs = 1;
    for (size_t i = 1; i < spec.shape.size(); ++i) inputs *= spec.shape[i];
    const double deviation = vector || spec.shape.size() == 3 ? 0.2 : 1 / std::sqrt(static_cast<double>(inputs));
    std::vector<float> v(static_cast<size_t>(element_count(spec.shape)));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>((ones ? 1 : 0) + deviation * random.normal(series, i));
    return v;
  };
}

NetworkDriver::NetworkDriver(const ModelConfig& config, const BatchShape& shape, DType dtype, int threads,
                             const ParameterSource& source, bool fp8_forward)
    : shape_(shape),
      dtype_(dtype),
      network_(make_wan_network(config, fp8_forward)),
      stream_(std::make_unique<InlineStream>(threads)) {
  DryStream dry;
  workspace_ = Buffer(dry_workspace(config, shape, dtype, dry, fp8_forward));
  parts_.emplace_back().module = network_.embedding.get();
  for (size_t i = 0; i < network_.layers.size(); ++i) {
    parts_.emplace_back().module = network_.layers[i].get();
    parts_.back().prefix = "blocks." + std::to_string(i) + ".";
    parts_.back().saved = Buffer(network_.layers[i]->saved_bytes(shape, dtype));
  }
  parts_.emplace_back().module = network_.head.get();
  parts_.front().saved = Buffer(network_.embedding->saved_bytes(shape, dtype));
  parts_.back().saved = Buffer(network_.head->saved_bytes(shape, dtype));
  for (Part& part : parts_) {
    const ParamLayout& layout = part.module->layout();
    part.weights = Buffer(layout.elements * dtype_bytes(dtype));
    part.gradients = Buffer(layout.elements * 4);
    part.packed = Buffer(part.module->packed_bytes(dtype, true));
    std::memset(part.weights.bytes(), 0, static_cast<size_t>(part.weights.size()));
    for (size_t i = 0; i < layout.offset.size(); ++i) {
      const ParamSpec& spec = part.module->params()[i];
      const std::vector<float> values = source(part.prefix + spec.name, spec);
      MS_CHECK(static_cast<int64_t>(values.size()) == element_count(spec.shape), "{}", spec.name);
      convert_from_f32(part.weights.bytes() + layout.offset[i] * dtype_bytes(dtype), dtype, values.data(),
                       element_count(spec.shape));
    }
    pack(part);
  }
}

void NetworkDriver::pack(Part& part) {
  part.packed.poison();
  part.module->pack(*stream_, dtype_, true, part.weights.bytes(), part.packed.bytes());
}

std::vector<float> NetworkDriver::forward(const std::vector<float>& latent, const std::vector<float>& timesteps,
                                          const std::vector<float>& text) {
  return run(latent, timesteps, text, true);
}

std::vector<float> NetworkDriver::infer(const std::vector<float>& latent, const std::vector<float>& timesteps,
                                        const std::vector<float>& text) {
  return run(latent, timesteps, text, false);
}

std::vector<float> NetworkDriver::run(const std::vector<float>& latent, const std::vector<float>& timesteps,
                                      const std::vector<float>& text, bool keep) {
  latent_ = latent;
  text_ = text;
  workspace_.poison();
  Workspace w(workspace_.bytes(), workspace_.size());
  const auto saved = [&](Part& p) -> void* {
    if (!keep) return nullptr;
    p.saved.poison();
    return p.saved.bytes();
  };
  const size_t width = static_cast<size_t>(network_.width), rows = static_cast<size_t>(shape_.rows()),
               batch = static_cast<size_t>(shape_.batch);
  states_.assign(1, std::vector<float>(rows * width, NAN));
  context.assign(batch * static_cast<size_t>(shape_.context_rows) * width, NAN);
  const size_t times = static_cast<size_t>(shape_.timesteps());
  time.assign(times * width, NAN);
  modulation.assign(times * 6 * width, NAN);
  network_.embedding->conditioning_forward(call(parts_.front(), w), timesteps.data(), text.data(), context.data(), time.data(),
                                           modulation.data(), saved(parts_.front()));
  network_.embedding->tokens_forward(call(parts_.front(), w), latent.data(), states_[0].data());
  const Conditioning conditioning{.context = context.data(), .modulation = modulation.data()};
  for (size_t i = 0; i < network_.layers.size(); ++i) {
    states_.emplace_back(rows * width, NAN);
    network_.layers[i]->forward(call(parts_[i + 1], w), conditioning, states_[i].data(), states_[i + 1].data(),
                                saved(parts_[i + 1]));
  }
  std::vector<float> out(static_cast<size_t>(elements(shape_, network_.out_channels)), NAN);
  network_.head->forward(call(parts_.back(), w), states_.back().data(), time.data(), out.data(), saved(parts_.back()));
  high_ = std::max(high_, w.high_water());
  return out;
}

void NetworkDriver::backward(const std::vector<float>& dout) {
  workspace_.poison();
  Workspace w(workspace_.bytes(), workspace_.size());
  for (Part& p : parts_) std::memset(p.gradients.bytes(), 0, static_cast<size_t>(p.gradients.size()));
  std::vector<float> dtokens(states_[0].size(), NAN), dcontext(context.size()), dtime(time.size()),
      dmodulation(modulation.size());
  network_.head->backward(call(parts_.back(), w), states_.back().data(), time.data(), parts_.back().saved.bytes(),
                          dout.data(), dtokens.data(), dtime.data(), parts_.back().gradients.f32());
  const Conditioning conditioning{context.data(), modulation.data(), dcontext.data(), dmodulation.data()};
  for (size_t i = network_.layers.size(); i-- > 0;)
    network_.layers[i]->backward(call(parts_[i + 1], w), conditioning, states_[i].data(), parts_[i + 1].saved.bytes(),
                                 dtokens.data(), dtokens.data(), parts_[i + 1].gradients.f32());
  dlatent.assign(latent_.size(), NAN);
  dtext.assign(text_.size(), NAN);
  network_.embedding->conditioning_backward(call(parts_.front(), w), text_.data(), parts_.front().saved.bytes(), dcontext.data(),
                                            dtime.data(), dmodulation.data(), dtext.data(), parts_.front().gradients.f32());
  network_.embedding->tokens_backward(call(parts_.front(), w), latent_.data(), dtokens.data(), dlatent.data(),
                                      parts_.front().gradients.f32());
  high_ = std::max(high_, w.high_water());
}

NetworkDriver::Part& NetworkDriver::part_of(const std::string& name, size_t& index) {
  for (Part& p : parts_)
    for (size_t i = 0; i < p.module->params().size(); ++i)
      if (p.prefix + p.module->params()[i].name == name) {
        index = i;
        return p;
      }
  MS_CHECK(false, "no parameter {}", name);
  return parts_.front();
}

std::vector<std::string> NetworkDriver::names() const {
  std::vector<std::string> all;
  for (const Part& p : parts_)
    for (const ParamSpec& s : p.module->params()) all.push_back(p.prefix + s.name);
  return all;
}

std::vector<float> NetworkDriver::gradient(const std::string& name) const {
  size_t i = 0;
  const Part& p = const_cast<NetworkDriver*>(this)->part_of(name, i);
  const float* from = p.gradients.f32() + p.module->layout().offset[i];
  return {from, from + element_count(p.module->params()[i].shape)};
}

std::vector<float> NetworkDriver::parameter(const std::string& name) const {
  size_t i = 0;
  const Part& p = const_cast<NetworkDriver*>(this)->part_of(name, i);
  std::vector<float> v(static_cast<size_t>(element_count(p.module->params()[i].shape)));
  convert_to_f32(v.data(), p.weights.bytes() + p.module->layout().offset[i] * dtype_bytes(dtype_), dtype_,
                 static_cast<int64_t>(v.size()));
  return v;
}

void NetworkDriver::set_parameter(const std::string& name, const std::vector<float>& values) {
  size_t i = 0;
  Part& p = part_of(name, i);
  convert_from_f32(p.weights.bytes() + p.module->layout().offset[i] * dtype_bytes(dtype_), dtype_, values.data(),
                   static_cast<int64_t>(values.size()));
  pack(p);
}

int64_t NetworkDriver::dry_workspace(const ModelConfig& config, const BatchShape& shape, DType dtype,
                                     DryStream& stream, bool fp8_forward) {
  const Network n = make_wan_network(config, fp8_forward);
  // Addresses as `sim` hands them out: apart, aligned, and not to be touched.
  uintptr_t next = uintptr_t{1} << 40;
  const auto fake = [&] {
    next += uintptr_t{1} << 36;
    return reinterpret_cast<float*>(next);
  };
  Workspace w(fake(), int64_t{1} << 36);
  const LayerCall call{stream, w, shape, dtype, fake(), fake()};
  float *latent = fake(), *text = fake(), *tokens = fake(), *context = fake(), *time = fake(), *modulation = fake();
  float *saved = fake(), *out = fake(), *gradients = fake(), *other = fake();
  const Conditioning conditioning{context, modulation, fake(), fake()};
  for (void* keep : {static_cast<void*>(saved), static_cast<void*>(nullptr)}) {
    n.embedding->conditioning_forward(call, time, text, context, time, modulation, keep);
    n.embedding->tokens_forward(call, latent, tokens);
    for (const auto& layer : n.layers) layer->forward(call, conditioning, tokens, other, keep);
    n.head->forward(call, tokens, time, out, keep);
  }
  n.head->backward(call, tokens, time, saved, out, other, time, gradients);
  for (const auto& layer : n.layers) layer->backward(call, conditioning, tokens, saved, other, other, gradients);
  n.embedding->conditioning_backward(call, text, saved, context, time, modulation, text, gradients);
  n.embedding->tokens_backward(call, latent, tokens, latent, gradients);
  MS_CHECK(w.mark() == 0, "a layer left {} bytes of its workspace taken", w.mark());
  return w.high_water();
}

}  // namespace megaslide::testing_support
