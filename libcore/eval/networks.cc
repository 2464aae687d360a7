#include "eval/networks.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/sha256.h"
#include "config/search_path.h"
#include "eval/dimensions.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

// The vocabulary in the user's folder, or else the one that is installed with the presets.
std::string vocabulary_path(const std::string& folder) {
  constexpr const char* kInstalled = "bpe_simple_vocab_16e6.txt.gz";
  std::error_code ec;
  for (const char* name : {"merges.txt", "tokenizer.json", kInstalled})
    if (fs::exists(fs::path(folder) / name, ec)) return (fs::path(folder) / name).string();
  for (const std::string& directory : config_directories())
    if (fs::exists(fs::path(directory) / "clip" / kInstalled, ec)) return (fs::path(directory) / "clip" / kInstalled).string();
  throw Error(fmt::format("{}: no vocabulary of CLIP", folder), fmt::format("put CLIP's merges.txt, tokenizer.json or {} there", kInstalled));
}

std::vector<float> values(const HostTensor& t) { return {t.f32(), t.f32() + t.elements()}; }

}  // namespace

EvalNetworks::EvalNetworks(const WeightsReport& weights, const std::vector<std::string>& dimensions, DType compute, ThreadPool& pool,
                           bool static_filter, ModelMemory* device)
    : compute_(compute), device_(device) {
  if (static_filter && !weights.networks.contains("raft_things"))
    throw usage_error("--static-filter needs raft_things in --weights", "put raft-things.pth there as raft_things.pth");
  const Turn turn(*this, pool);
  const Place& place = turn.place();
  const auto wanted = [&](std::string_view network) {
    return weights.networks.contains(std::string(network)) && std::ranges::any_of(dimensions, [&](const std::string& name) {
             const Dimension* d = find_dimension(name);
             return weights.serves(*d) && std::ranges::find(d->networks, network) != d->networks.end();
           });
  };
  const auto open = [&](const char* network, const char* prefix = "") {
    const NetworkWeights file = NetworkWeights::open(weights.networks.at(network), prefix);
    used_[network] = {file.path(), file.sha256(), published_licence(network)};
    return file;
  };
  if (wanted("dino_vitb16")) dino_ = std::make_unique<DinoNetwork>(DinoNetwork::load(place, open("dino_vitb16"), compute));
  // One dimension compares pictures with a text; to the others a text tower is memory alone.
  const bool styles = wanted("clip_vit_b32") && std::ranges::find(dimensions, "appearance_style") != dimensions.end();
  const auto load_clip = [&](const char* network, ClipTowers towers) {
    return std::make_unique<ClipNetwork>(ClipNetwork::load(place, open(network), compute, towers));
  };
  if (wanted("clip_vit_b32")) clip_b32_ = load_clip("clip_vit_b32", styles ? ClipTowers::kImageAndText : ClipTowers::kImage);
  if (wanted("clip_vit_l14")) clip_l14_ = load_clip("clip_vit_l14", ClipTowers::kImage);
  if (wanted("aesthetic_head") && clip_l14_)
    aesthetic_head_ = std::make_unique<AestheticHead>(AestheticHead::load(open("aesthetic_head"), clip_l14_->embed()));
  if (wanted("viclip_l14")) viclip_ = std::make_unique<ViclipNetwork>(ViclipNetwork::load(place, open("viclip_l14"), compute));
  if (static_filter || wanted("raft_things")) raft_ = std::make_unique<Raft>(place, open("raft_things", "module."));
  if (wanted("amt_s")) amt_ = std::make_unique<Amt>(place, open("amt_s"));
  if (wanted("musiq_spaq")) musiq_ = std::make_unique<MusiqNetwork>(MusiqNetwork::load(place, open("musiq_spaq")));
  if (!styles && !viclip_) return;
  load_tokenizer(weights);
  if (styles) require_vocabulary(clip_b32_->vocabulary(), used_.at("clip_vit_b32").path);
  if (viclip_) require_vocabulary(viclip_->vocabulary(), used_.at("viclip_l14").path);
}

void EvalNetworks::load_tokenizer(const WeightsReport& weights) {
  const std::string path = vocabulary_path(weights.folder);
  tokenizer_ = std::make_unique<ClipTokenizer>(ClipTokenizer::open(path));
  used_["clip_vocabulary"] = {path, sha256_file(path), published_licence("clip_vit_b32")};
}

void EvalNetworks::require_vocabulary(int64_t ids, const std::string& path) const {
  if (tokenizer_->size() != ids)
    throw Error(fmt::format("{}: knows {} ids, the vocabulary {} has {}", path, ids, tokenizer_->path(), tokenizer_->size()),
                "use the vocabulary that the network was trained with");
}

std::vector<float> EvalNetworks::clip_text(const std::string& text, ThreadPool& pool) const {
  const std::lock_guard lock(mutex_);
  std::vector<float>& feature = texts_["clip:" + text];
  if (feature.empty()) {
    const std::vector<int64_t> ids = tokenizer_->encode(text);
    require_clip_context(ids, text);
    feature = values(clip_b32().text_features(Turn(*this, pool).place(), ids));
  }
  return feature;
}

std::vector<float> EvalNetworks::viclip_text(const std::string& text, ThreadPool& pool) const {
  const std::lock_guard lock(mutex_);
  std::vector<float>& feature = texts_["viclip:" + text];
  if (feature.empty()) {
    feature = values(viclip().text_features(Turn(*this, pool).place(), cut_to_viclip_context(tokenizer_->encode(text))));
  }
  return feature;
}

}  // namespace megaslide
