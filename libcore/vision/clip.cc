#include "vision/clip.h"

#include <cmath>

#include "base/error.h"
#include "base/json_cursor.h"
#include "kernels/memory/memory.h"

namespace megaslide {
namespace {

constexpr double kEps = 1e-5;

struct Names {
  std::string class_token, places, patches, before, after, projection;
  bool projection_from_right;
  TransformerNames blocks;
  TextTowerNames text;
};

const Names& openai() {
  static const Names names{"visual.class_embedding", "visual.positional_embedding", "visual.conv1.weight", "visual.ln_pre", "visual.ln_post",
                           "visual.proj", true, openai_names("visual.transformer.resblocks."),
                           {"token_embedding.weight", "positional_embedding", "ln_final", "text_projection", true, openai_names("transformer.resblocks.")}};
  return names;
}

TransformerNames hugging_face_blocks(const std::string& tower) {
  return {.blocks = tower + ".encoder.layers.", .norm1 = "layer_norm1", .q = "self_attn.q_proj", .k = "self_attn.k_proj", .v = "self_attn.v_proj",
          .out = "self_attn.out_proj", .norm2 = "layer_norm2", .fc1 = "mlp.fc1", .fc2 = "mlp.fc2"};
}
const Names& hugging_face() {
  static const Names names{"vision_model.embeddings.class_embedding", "vision_model.embeddings.position_embedding.weight",
                           "vision_model.embeddings.patch_embedding.weight", "vision_model.pre_layrnorm", "vision_model.post_layernorm",
                           "visual_projection.weight", false, hugging_face_blocks("vision_model"),
                           {"text_model.embeddings.token_embedding.weight", "text_model.embeddings.position_embedding.weight", "text_model.final_layer_norm",
                            "text_projection.weight", false, hugging_face_blocks("text_model")}};
  return names;
}

// What files hold besides weights.
const std::vector<std::string>& buffers() {
  static const std::vector<std::string> names{"text_model.embeddings.position_ids", "vision_model.embeddings.position_ids", "input_resolution",
                                              "context_length", "vocab_size"};
  return names;
}

}  // namespace

ClipNetwork ClipNetwork::load(Stream& stream, const NetworkWeights& file, DType compute) {
  const Names& n = file.has(hugging_face().class_token) ? hugging_face() : openai();
  const TransformerShape shape = transformer_shape(file, n.blocks, kEps, MlpActivation::kQuickGelu, false);
  std::map<std::string, Shape> expected;
  const TransformerShape text = TextTower::expect(expected, file, n.text, kEps);
  const Shape kernel = file.shape(n.patches);
  const int64_t side = kernel.empty() ? 0 : kernel.back(), places = rows_of_matrix(file, n.places, shape.width);
  const int64_t grid = std::lround(std::sqrt(static_cast<double>(places - 1)));
  if (side < 1 || grid < 1 || grid * grid + 1 != places)
    throw Error(fmt::format("{}: {} is {} and {} has {} rows: not those of square patches and of 1 + g² places", file.path(), quote_for_message(n.patches),
                            to_string(kernel), quote_for_message(n.places), places),
                "use a published CLIP with a vision transformer");
  const Shape& projected = expected.at(n.text.projection);
  const int64_t embed = n.text.projection_from_right ? projected[1] : projected[0];
  expected[n.class_token] = {shape.width};
  expected[n.places] = {places, shape.width};
  expected[n.patches] = {shape.width, 3, side, side};
  for (const std::string& norm : {n.before, n.after}) expected[norm + ".weight"] = expected[norm + ".bias"] = {shape.width};
  expected[n.projection] = n.projection_from_right ? Shape{shape.width, embed} : Shape{embed, shape.width};
  expected["logit_scale"] = {};
  add_transformer_tensors(expected, shape, n.blocks);
  file.require(expected, buffers());

  ClipNetwork c;
  c.image_size_ = grid * side;
  c.logit_scale_ = std::exp(static_cast<double>(file.read("logit_scale").f32()[0]));
  c.embedding_ = {stream, file.read(n.patches), {}, products_for(stream, compute)};
  c.places_ = file.read(n.places);
  const HostTensor class_token = file.read(n.class_token), projection = file.read(n.projection);
  add_in_place(stream, c.places_.f32(), class_token.f32(), shape.width);
  c.before_ = AffineNorm(file, n.before, kEps);
  c.after_ = AffineNorm(file, n.after, kEps);
  c.transformer_ = {stream, file, shape, n.blocks, compute};
  c.projection_ = {stream, n.projection_from_right ? transposed(projection) : projection.clone(), {}, Products::kFloat};
  c.text_ = {stream, file, text, n.text, compute};
  return c;
}

HostTensor ClipNetwork::image_features(Stream& stream, const HostTensor& pixels) const {
  const ImageSizes n = image_sizes(pixels);
  if (n.height != image_size_ || n.width != image_size_)
    throw Error(fmt::format("a picture of {}×{} pixels, where this CLIP takes {}×{}", n.width, n.height, image_size_, image_size_));
  HostTensor x = embedding_.tokens(stream, pixels, n.count, places_);
  const int64_t tokens = places_.shape()[0];
  before_.forward(stream, x.f32(), x.f32(), n.count * tokens, DType::kF32);
  HostTensor last = transformer_.forward(stream, x.f32(), n.count, tokens, 0), features(DType::kF32, {n.count, embed()});
  after_.forward(stream, last.f32(), last.f32(), n.count, DType::kF32);
  projection_.forward(stream, features.f32(), last.f32(), n.count);
  return features;
}

}  // namespace megaslide
