#include "vision/clip.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

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

ClipNetwork ClipNetwork::load(const Place& place, const NetworkWeights& file, DType compute, ClipTowers towers) {
  const Names& n = file.has(hugging_face().class_token) ? hugging_face() : openai();
  const TransformerShape shape = transformer_shape(file, n.blocks, kEps, MlpActivation::kQuickGelu, false);
  std::map<std::string, Shape> expected;
  const TransformerShape text = TextTower::expect(expected, file, n.text, kEps);
  const Shape& kernel = file.shape(n.patches);
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
  c.embedding_ = {place, file.read(n.patches), {}, products_for(place, compute)};
  HostTensor table = file.read(n.places);
  const HostTensor class_token = file.read(n.class_token), projection = file.read(n.projection);
  for (int64_t i = 0; i < shape.width; ++i) table.f32()[i] += class_token.f32()[i];
  c.places_ = {place, std::move(table)};
  c.before_ = AffineNorm(place, file, n.before, kEps);
  c.after_ = AffineNorm(place, file, n.after, kEps);
  c.transformer_ = {place, file, shape, n.blocks, compute};
  c.projection_ = {place, n.projection_from_right ? transposed(projection) : projection.clone(), {}, Products::kFloat};
  if (towers == ClipTowers::kImageAndText) c.text_ = TextTower(place, file, text, n.text, compute);
  return c;
}

HostTensor ClipNetwork::image_features(const Place& place, const HostTensor& pixels) const {
  const ImageSizes n = image_sizes(pixels);
  if (n.height != image_size_ || n.width != image_size_)
    throw Error(fmt::format("a picture of {}×{} pixels, where this CLIP takes {}×{}", n.width, n.height, image_size_, image_size_));
  PlacedTensor x = embedding_.tokens(place, pixels, n.count, places_);
  const int64_t tokens = places_.shape()[0];
  before_.forward(place, x.f32(), x.f32(), n.count * tokens, DType::kF32);
  PlacedTensor last = transformer_.forward(place, x.f32(), n.count, tokens, 0), features(place, DType::kF32, {n.count, embed()});
  after_.forward(place, last.f32(), last.f32(), n.count, DType::kF32);
  projection_.forward(place, features.f32(), last.f32(), n.count);
  return features.to_host(place);
}

}  // namespace megaslide
