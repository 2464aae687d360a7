#include "io/wan_variants.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

bool any_name(const TensorSource& source, const std::vector<std::string>& parts) {
  for (const auto& [name, entry] : source.tensors())
    for (const auto& p : parts)
      if (name.find(p) != std::string::npos) return true;
  return false;
}

const std::vector<std::string> kLoraParts = {".lora_A", ".lora_B", "lora_down", "lora_up", "lora_unet"};

// "rank 2, 8 modules", from the tensors that go down to the rank.
std::string describe_lora(const TensorSource& source) {
  std::set<std::string> modules;
  std::set<int64_t> ranks;
  for (const auto& [name, entry] : source.tensors())
    for (const char* part : {".lora_A", ".lora_down"})
      if (const size_t at = name.find(part); at != std::string::npos && !entry.shape.empty()) {
        modules.insert(name.substr(0, at));
        ranks.insert(entry.shape[0]);
      }
  if (modules.empty()) return {};
  const std::string rank = ranks.size() == 1 ? std::to_string(*ranks.begin()) : fmt::format("{} to {}", *ranks.begin(), *ranks.rbegin());
  return fmt::format(" (rank {}, {} modules)", rank, modules.size());
}

}  // namespace

bool is_conditioned(const ModelConfig& c) { return c.in_channels > c.out_channels; }

void apply_wan_defaults(ModelConfig& c, bool two_networks) {
  const bool size_14b = c.dim == 5120 && c.layers == 40 && c.ffn_dim == 13824;
  c.name = "custom";
  if (c.dim == 1536 && c.layers == 30 && c.ffn_dim == 8960 && c.in_channels == 16) c.name = "wan2.1-t2v-1.3b";
  if (size_14b && c.in_channels == 16) c.name = two_networks ? "wan2.2-t2v-a14b" : "wan2.1-t2v-14b";
  if (size_14b && c.in_channels == 36) c.name = "wan2.2-i2v-a14b";
  if (c.dim == 3072 && c.layers == 30 && c.ffn_dim == 14336 && c.in_channels == 48) c.name = "wan2.2-ti2v-5b";
  if (size_14b) {
    c.width = 1280;
    c.height = 720;
  }
  if (c.in_channels == 48 && c.out_channels == 48) {
    c.num_frames = 121;
    c.fps = 24;
    c.width = 1280;
    c.height = 704;
  }
  if (two_networks || c.in_channels == 36) c.steps = 40;
  if (two_networks) {
    const bool image = is_conditioned(c);
    c.boundary = image ? 0.9 : 0.875;
    c.flow_shift = image ? 5 : 12;
    c.guidance_scale = image ? 3.5 : 4;
    c.guidance_scale_2 = image ? 3.5 : 3;
  }
}

void reject_foreign_network(const TensorSource& source) {
  const auto is = [&](const std::string& what, const std::string& remedy) {
    throw Error(fmt::format("{}: not a Wan transformer but {}", source.path(), what), remedy);
  };
  if (any_name(source, kLoraParts))
    is("a LoRA adapter" + describe_lora(source), "give the base model, or merge the adapter into it first");
  if (any_name(source, {"decoder.conv_in.", "encoder.conv_in.", "decoder.mid_block.", "encoder.downsamples.", "decoder.upsamples."}))
    is("a video autoencoder (VAE)", "give the whole checkpoint's folder, or the transformer with this file: shard-weights TRANSFORMER --vae FILE -o DIR");
  if (any_name(source, {"encoder.block.0.", "SelfAttention.", "shared.weight", "token_embedding.weight"}))
    is("a text encoder", "give the whole checkpoint's folder, or the transformer with this file: shard-weights TRANSFORMER --text-encoder FILE -o DIR");
  if (any_name(source, {"visual.transformer.resblocks", "vision_model.encoder", "visual.trunk."}))
    is("an image encoder (CLIP)", "give the transformer, or the whole checkpoint's folder");
  if (any_name(source, {"double_blocks.", "single_blocks.", "transformer_blocks.", "joint_blocks.", "single_transformer_blocks."}))
    is("the transformer of another architecture", "Wan text-to-video models are supported");
  if (any_name(source, {"input_blocks.", "down_blocks."})) is("a U-Net", "Wan text-to-video models are supported");
  std::string names;
  int shown = 0;
  for (const auto& [name, entry] : source.tensors()) {
    if (shown++ == 3) break;
    names += (names.empty() ? "" : ", ") + quote_for_message(name);
  }
  throw Error(fmt::format("{}: not a Wan transformer: no tensor patch_embedding.weight among {} tensors{}", source.path(), source.tensors().size(),
                          names.empty() ? "" : " (" + names + ", …)"),
              "give a diffusers folder, or a file with the tensors of a Wan transformer");
}

void reject_wan_variants(const TensorSource& source, const std::string& prefix) {
  const auto is = [&](const std::string& what, const std::string& remedy = "use a text-to-video model: the image's and the controls' inputs are not supported") {
    throw Error(fmt::format("{}: {}", source.path(), what), remedy);
  };
  if (any_name(source, kLoraParts)) is("a model with unmerged LoRA tensors", "merge them into the weights first");
  if (any_name(source, {prefix + "vace_"})) is("a Wan VACE model (it has a network for control videos)");
  if (any_name(source, {"control_adapter", "face_adapter", "audio_proj", "ref_conv", "motion_encoder", "pose_patch_embedding"}))
    is("a Wan variant with control inputs (Fun control, animation or speech)");
  if (any_name(source, {"img_emb.emb_pos", "image_embedder.pos_embed"})) is("a Wan 2.1 first-and-last-frame model (FLF2V): its blocks attend to two images");
  if (any_name(source, {"img_emb.", "image_embedder.", "add_k_proj.", "k_img."}))
    is("a Wan 2.1 image-to-video model: its blocks attend to an image (it has an image encoder's projections)");
}

}  // namespace megaslide
