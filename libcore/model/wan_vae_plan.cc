#include "model/wan_vae_plan.h"

#include <fmt/format.h>

namespace megaslide {
namespace {
using Kind = WanVaeStep::Kind;

void middle(std::vector<WanVaeStep>& steps, const std::string& side, int64_t width) {
  steps.push_back({.kind = Kind::kResidual, .name = side + ".mid_block.resnets.0", .in = width, .out = width});
  steps.push_back({.kind = Kind::kAttention, .name = side + ".mid_block.attentions.0", .in = width, .out = width});
  steps.push_back({.kind = Kind::kResidual,
                   .name = side + ".mid_block.resnets.1",
                   .in = width,
                   .out = width,
                   .stage = side + ".mid_block"});
}

std::vector<WanVaeStep> encoder(const WanVaeConfig& c) {
  std::vector<WanVaeStep> steps;
  const size_t stages = c.dim_mult.size();
  int64_t width = c.base_dim;
  // diffusers puts a factor 1 in front of dim_mult: the first convolution gives base_dim.
  steps.push_back({.kind = Kind::kConv,
                   .name = "encoder.conv_in",
                   .in = c.pixel_channels(),
                   .out = c.base_dim,
                   .stage = "encoder.conv_in"});
  int flat = 0;
  for (size_t i = 0; i < stages; ++i) {
    const int64_t out = c.base_dim * c.dim_mult[i];
    const bool down = i + 1 < stages;
    const int first = static_cast<int>(steps.size());
    const int64_t stage_in = width;
    const std::string stage = fmt::format("encoder.down_blocks.{}", i);
    for (int64_t j = 0; j < c.num_res_blocks; ++j, width = out) {
      const std::string name =
          c.residual ? fmt::format("{}.resnets.{}", stage, j) : fmt::format("encoder.down_blocks.{}", flat++);
      steps.push_back(
          {.kind = Kind::kResidual, .name = name, .in = width, .out = out, .stage = c.residual ? "" : name});
    }
    const bool temporal = down && c.temporal_downsample[i];
    if (down) {
      const std::string name = c.residual ? stage + ".downsampler" : fmt::format("encoder.down_blocks.{}", flat++);
      steps.push_back({.kind = Kind::kDown,
                       .name = name,
                       .in = out,
                       .out = out,
                       .temporal = temporal,
                       .stage = c.residual ? "" : name});
    }
    if (!c.residual) continue;
    WanVaeStep& last = steps.back();
    last.stage = stage;
    last.from = first;
    last.stage_in = stage_in;
    last.time_factor = temporal ? 2 : 1;
    last.space_factor = down ? 2 : 1;
  }
  middle(steps, "encoder", width);
  steps.push_back({.kind = Kind::kHead, .name = "encoder.", .in = width, .out = 2 * c.z_dim});
  steps.push_back(
      {.kind = Kind::kConv, .name = "quant_conv", .in = 2 * c.z_dim, .out = 2 * c.z_dim, .pointwise = true});
  return steps;
}

std::vector<WanVaeStep> decoder(const WanVaeConfig& c) {
  std::vector<WanVaeStep> steps;
  const size_t stages = c.dim_mult.size();
  int64_t width = c.decoder_base_dim * c.dim_mult.back();
  steps.push_back({.kind = Kind::kConv, .name = "post_quant_conv", .in = c.z_dim, .out = c.z_dim, .pointwise = true});
  steps.push_back(
      {.kind = Kind::kConv, .name = "decoder.conv_in", .in = c.z_dim, .out = width, .stage = "decoder.conv_in"});
  middle(steps, "decoder", width);
  for (size_t i = 0; i < stages; ++i) {
    const int64_t out = c.decoder_base_dim * c.dim_mult[stages - 1 - i];
    const bool up = i + 1 < stages;
    const int first = static_cast<int>(steps.size());
    const int64_t stage_in = width;
    const std::string stage = fmt::format("decoder.up_blocks.{}", i);
    for (int64_t j = 0; j <= c.num_res_blocks; ++j, width = out)
      steps.push_back(
          {.kind = Kind::kResidual, .name = fmt::format("{}.resnets.{}", stage, j), .in = width, .out = out});
    const bool temporal = up && c.temporal_downsample[stages - 2 - i];
    if (up) {
      const int64_t narrow = c.residual ? out : out / 2;
      steps.push_back({.kind = Kind::kUp,
                       .name = stage + (c.residual ? ".upsampler" : ".upsamplers.0"),
                       .in = out,
                       .out = narrow,
                       .temporal = temporal});
      width = narrow;
    }
    WanVaeStep& last = steps.back();
    last.stage = stage;
    if (!c.residual || !up) continue;
    last.from = first;
    last.stage_in = stage_in;
    last.time_factor = temporal ? 2 : 1;
    last.space_factor = 2;
  }
  steps.push_back({.kind = Kind::kHead, .name = "decoder.", .in = width, .out = c.pixel_channels()});
  return steps;
}

void add_convolution(std::map<std::string, Shape>& t, const std::string& name, Shape weight) {
  t[name + ".bias"] = {weight[0]};
  t[name + ".weight"] = std::move(weight);
}

void add_tensors(std::map<std::string, Shape>& t, const WanVaeStep& s) {
  switch (s.kind) {
    case Kind::kConv:
      return add_convolution(t, s.name, s.pointwise ? Shape{s.out, s.in, 1, 1, 1} : Shape{s.out, s.in, 3, 3, 3});
    case Kind::kResidual:
      t[s.name + ".norm1.gamma"] = {s.in, 1, 1, 1};
      t[s.name + ".norm2.gamma"] = {s.out, 1, 1, 1};
      add_convolution(t, s.name + ".conv1", {s.out, s.in, 3, 3, 3});
      add_convolution(t, s.name + ".conv2", {s.out, s.out, 3, 3, 3});
      if (s.in != s.out) add_convolution(t, s.name + ".conv_shortcut", {s.out, s.in, 1, 1, 1});
      return;
    case Kind::kAttention:
      t[s.name + ".norm.gamma"] = {s.in, 1, 1};
      add_convolution(t, s.name + ".to_qkv", {3 * s.in, s.in, 1, 1});
      return add_convolution(t, s.name + ".proj", {s.in, s.in, 1, 1});
    case Kind::kDown:
      add_convolution(t, s.name + ".resample.1", {s.out, s.in, 3, 3});
      if (s.temporal) add_convolution(t, s.name + ".time_conv", {s.out, s.out, 3, 1, 1});
      return;
    case Kind::kUp:
      add_convolution(t, s.name + ".resample.1", {s.out, s.in, 3, 3});
      if (s.temporal) add_convolution(t, s.name + ".time_conv", {2 * s.in, s.in, 3, 1, 1});
      return;
    case Kind::kHead:
      t[s.name + "norm_out.gamma"] = {s.in, 1, 1, 1};
      return add_convolution(t, s.name + "conv_out", {s.out, s.in, 3, 3, 3});
  }
}

}  // namespace

std::vector<WanVaeStep> wan_vae_steps(const WanVaeConfig& config, WanVaeSide side) {
  return side == WanVaeSide::kEncoder ? encoder(config) : decoder(config);
}

std::map<std::string, Shape> wan_vae_tensors(const WanVaeConfig& config) {
  std::map<std::string, Shape> tensors;
  for (const WanVaeSide side : {WanVaeSide::kEncoder, WanVaeSide::kDecoder})
    for (const WanVaeStep& s : wan_vae_steps(config, side)) add_tensors(tensors, s);
  return tensors;
}

}  // namespace megaslide
