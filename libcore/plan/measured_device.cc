#include "plan/measured_device.h"

namespace megaslide::measured {
namespace {

Network one_block(const ModelConfig& model) {
  ModelConfig config = model;
  config.layers = 1;
  config.attention.per_layer.clear();
  config.attention.kind = model.attention.of_layer(0);
  return make_wan_network(config);
}

}  // namespace

MeasuredBlock::MeasuredBlock(Device& device, const ModelConfig& model, const BatchShape& shape)
    : network_(one_block(model)), layer_(*network_.layers.front()), shape_(shape), space_(device) {
  constexpr DType kType = DType::kBF16;
  const int64_t rows = shape.rows(), context = shape.batch * shape.context_rows * model.dim, modulation = shape.batch * 6 * model.dim,
                elements = layer_.layout().elements;
  weights_ = space_.noise(kType, elements);
  dweights_ = space_.zeros<float>(elements);
  x_ = static_cast<float*>(space_.noise(DType::kF32, rows * model.dim));
  y_ = space_.zeros<float>(rows * model.dim);
  packed_ = space_.zeros<std::byte>(layer_.packed_bytes(kType, true));
  saved_ = space_.zeros<std::byte>(layer_.saved_bytes(shape, kType));
  conditioning_ = {static_cast<float*>(space_.noise(DType::kF32, context)), static_cast<float*>(space_.noise(DType::kF32, modulation)),
                   space_.zeros<float>(context), space_.zeros<float>(modulation)};
  // What the passes take of the workspace, told by a dry run.
  const auto sim = make_sim_device({.target = device.compute().target()});
  forward(sim->compute(), true);
  backward(sim->compute());
  const int64_t bytes = workspace_.high_water();
  workspace_ = Workspace(space_.zeros<std::byte>(bytes), bytes);
}

void MeasuredBlock::pack(Stream& stream, bool training) { layer_.pack(stream, DType::kBF16, training, weights_, packed_); }
void MeasuredBlock::forward(Stream& stream, bool save) { layer_.forward(call(stream), conditioning_, x_, y_, save ? saved_ : nullptr); }
void MeasuredBlock::backward(Stream& stream) { layer_.backward(call(stream), conditioning_, x_, saved_, y_, y_, dweights_); }

}  // namespace megaslide::measured
