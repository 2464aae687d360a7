// encode-clips --tensor and --text: single tensors and prompts, for comparing with another stack.
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "data/encode.h"
#include "diffusion/device_memory.h"
#include "io/safetensors.h"
#include "model/text_encoder.h"
#include "model/video_codec.h"

namespace megaslide {

void encode_tensor_file(const std::string& input, const std::string& output, const ModelParts& parts, ThreadPool& pool, const PartOptions& options) {
  PartDevice device(has_learned_codec(parts) ? options.backend : Backend::kCpu, pool.size());
  const auto codec = make_codec(parts, codec_options(options, device.memory()));
  const SafetensorsFile file = SafetensorsFile::open(input);
  const TensorView stored = file.view("video");
  if (stored.shape.size() != 5 || stored.shape[0] < 1 || stored.shape[1] != 3)
    throw usage_error(fmt::format("{}: video is {}, expected [B, 3, F, H, W]", input, to_string(stored.shape)));
  const HostTensor video = read_f32(file, "video");
  Shape one(stored.shape.begin() + 1, stored.shape.end());
  const int64_t batch = stored.shape[0], elements = element_count(one);
  for (int64_t i = 0; i < video.elements(); ++i)
    if (!(video.f32()[i] >= -1 && video.f32()[i] <= 1)) {
      log_warning("{}: video holds values outside of [-1, 1]", input);
      break;
    }
  HostTensor mean, logvar, normalised;
  for (int64_t b = 0; b < batch; ++b) {
    const auto e = codec->encode_moments(pool, {DType::kF32, one, reinterpret_cast<const std::byte*>(video.f32() + b * elements)});
    if (b == 0) {
      Shape all = e.mean.shape();
      all.insert(all.begin(), batch);
      mean = HostTensor(DType::kF32, all);
      logvar = HostTensor(DType::kF32, all);
      normalised = HostTensor(DType::kF32, all);
    }
    std::memcpy(mean.data() + b * e.mean.bytes(), e.mean.data(), static_cast<size_t>(e.mean.bytes()));
    std::memcpy(logvar.data() + b * e.logvar.bytes(), e.logvar.data(), static_cast<size_t>(e.logvar.bytes()));
    std::memcpy(normalised.data() + b * e.normalised.bytes(), e.normalised.data(), static_cast<size_t>(e.normalised.bytes()));
  }
  write_safetensors(output, {{"mean", mean.view()}, {"logvar", logvar.view()}, {"mean_normalised", normalised.view()}});
}

std::string encode_texts(const std::vector<std::string>& texts, const std::string& output, const ModelParts& parts, ThreadPool& pool, const PartOptions& options) {
  const auto encoder = make_text_encoder(parts, text_dtype(options));
  std::vector<HostTensor> embeds, ids;
  std::vector<std::pair<std::string, TensorView>> tensors;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const std::vector<EncodedText> encoded = encoder->encode_all(pool, texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    const EncodedText& e = encoded[i];
    if (e.cut > 0)
      log_warning("\"{}\": {} tokens more than the model's {} rows; they are left out", e.cleaned.substr(0, 40), e.cut, parts.config.text_len);
    embeds.push_back(pad_text(parts.config, e.rows.view()));
    ids.emplace_back(DType::kI64, Shape{static_cast<int64_t>(e.ids.size())});
    if (!e.ids.empty()) std::memcpy(ids.back().data(), e.ids.data(), e.ids.size() * sizeof(int64_t));
    list.push_back({{"text", texts[i]}, {"cleaned", e.cleaned}, {"ids", e.ids}});
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    tensors.emplace_back(fmt::format("embeds.{}", i), embeds[i].view());
    tensors.emplace_back(fmt::format("ids.{}", i), ids[i].view());
  }
  if (!output.empty()) write_safetensors(output, tensors);
  return nlohmann::ordered_json{{"texts", list}}.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace megaslide
