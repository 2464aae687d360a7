// Networks that score on the cuda device, over the mock of the CUDA runtime: as near to the goldens as on the processor.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "diffusion/device_memory.h"
#include "tests/mock_cuda/mock_runtime.h"
#include "eval/networks.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"
#include "tests/vision/golden_networks.h"
#include "vision/amt.h"
#include "vision/clip.h"
#include "vision/dino.h"
#include "vision/musiq.h"
#include "vision/raft.h"
#include "vision/viclip.h"

namespace megaslide {
namespace {

using mock_cuda::runtime_counts;
using mock_cuda::set_runtime_faults;
using testing_support::error_of;
using testing_support::expect_contains;
using testing_support::TemporaryFolder;

// Those of the processor's tests (tests/vision), with the same reasons: sums of fp32 in another order.
constexpr double kTransformer = 1.5e-6, kTransformerBf16 = 1.5e-2, kMusiqValues = 5e-5;
// Networks of flow feed back what they give: two runs, each so far from the golden, may be twice that apart.
constexpr double kFlow = 2 * 1.6e-5, kPrediction = 2 * 6e-5;

class VisionDevice : public testing::Test {
 protected:
  VisionDevice() {
    set_runtime_faults({});
    device_ = make_cuda_device({.threads = 2, .budget = int64_t{256} << 20});
    memory_.emplace(*device_);
    free_ = memory_->available();
  }
  ~VisionDevice() override {
    EXPECT_EQ(memory_->available(), free_);
    EXPECT_EQ(runtime_counts().synchronous_copies, 0);
    memory_.reset();
    device_.reset();
    EXPECT_EQ(runtime_counts().live, 0);
  }
  Place place() { return *memory_; }

  InlineStream processor_{2};
  std::unique_ptr<Device> device_;
  std::optional<DeviceModelMemory> memory_;
  int64_t free_ = 0;
};

TEST_F(VisionDevice, DinoGivesTheGoldens) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const DinoNetwork dino = DinoNetwork::load(place(), vbench_weights("dino_hub"), compute);
    for (const char* image : {"48x80", "70x37"})
      EXPECT_LT(distance(dino.features(place(), vbench_golden("dino_golden", std::string("image_") + image)), vbench_golden("dino_golden", std::string("feature_") + image)),
                compute == DType::kF32 ? kTransformer : kTransformerBf16)
          << image;
  }
}

HostTensor first_pictures(const HostTensor& t, int64_t count) {
  Shape shape = t.shape();
  shape[0] = count;
  HostTensor out(DType::kF32, shape);
  std::copy_n(t.f32(), out.elements(), out.f32());
  return out;
}

TEST_F(VisionDevice, ClipSeesAndReadsAsOnTheProcessor) {
  const ClipNetwork clip = ClipNetwork::load(place(), vbench_weights("clip_hf")), on_cpu = ClipNetwork::load(processor_, vbench_weights("clip_hf"));
  HostTensor pixels(DType::kF32, {2, 3, clip.image_size(), clip.image_size()});
  for (int64_t i = 0; i < pixels.elements(); ++i) pixels.f32()[i] = static_cast<float>(i * 7919 % 509) / 254.0F - 1;
  EXPECT_LT(distance(clip.image_features(place(), pixels), on_cpu.image_features(processor_, pixels)), 2 * kTransformer);
  const std::vector<int64_t> ids{clip.vocabulary() - 2, 17, 300, 4, clip.vocabulary() - 1};
  EXPECT_LT(distance(clip.text_features(place(), ids), on_cpu.text_features(processor_, ids)), 2 * kTransformer);
}

TEST_F(VisionDevice, ViclipGivesTheGolden) {
  const ViclipNetwork viclip = ViclipNetwork::load(place(), vbench_weights("viclip_names"));
  const HostTensor pixels = vbench_golden("viclip_golden", "pixels");
  const HostTensor want = vbench_golden("viclip_golden", "video_features");
  EXPECT_LT(distance(viclip.video_features(place(), first_pictures(pixels, viclip.frames())), rows_of(want, 0, 1)), kTransformer);
}

TEST_F(VisionDevice, MusiqGivesTheGoldens) {
  const SafetensorsFile golden = SafetensorsFile::open(vbench_data("musiq_golden"));
  const auto json = vbench_json("musiq");
  const MusiqNetwork musiq = MusiqNetwork::load(place(), vbench_weights("musiq_names"), json.at("config").at("heads").get<int64_t>());
  const TensorView v = golden.view("portrait.image");
  const auto* p = reinterpret_cast<const uint8_t*>(v.data);
  const Picture picture{v.shape[2], v.shape[1], std::vector<uint8_t>(p, p + v.shape[1] * v.shape[2] * 3)};
  const MusiqPatches patches = musiq_patches(musiq_frame(picture, processor_.pool()), processor_.pool());
  const HostTensor embedding = musiq.embedding(place(), patches);
  EXPECT_LT(distance(embedding, read_f32(golden, "portrait.embedding")), kMusiqValues);
  EXPECT_LT(distance(musiq.class_feature(place(), embedding, patches), read_f32(golden, "portrait.class_feature")), kMusiqValues);
}

TEST_F(VisionDevice, RaftSeesTheFlowOfTheProcessor) {
  const HostTensor video = vbench_tensor("raft_golden", "video");
  const auto* bytes = reinterpret_cast<const uint8_t*>(video.data());
  const auto flow = [&](const Place& where) {
    const Raft raft = where.device() ? Raft(where, NetworkWeights::open(vbench_data("raft_things_names"), "module.")) : Raft::open(processor_, vbench_data("raft_things_names"));
    const RaftFrame a = raft.frame(where, bytes, 144, 128), b = raft.frame(where, bytes + 128 * 144 * 3, 144, 128);
    return raft.flow(where, a, b, 2);
  };
  EXPECT_LT(distance(flow(place()), flow(processor_)), kFlow);
}

TEST_F(VisionDevice, AmtPredictsTheFrameOfTheProcessor) {
  const HostTensor video = vbench_tensor("amt_golden", "video");
  const auto* bytes = reinterpret_cast<const uint8_t*>(video.data());
  const auto predict = [&](const Place& where) {
    return Amt(where, NetworkWeights::open(vbench_data("amt_names"))).predict(where, bytes, bytes + 2 * 121 * 133 * 3, 133, 121);
  };
  EXPECT_LT(distance(predict(place()), predict(processor_)), kPrediction);
}

// Nothing of a call stays on the device, and its bits do not depend on what lies there.
TEST_F(VisionDevice, SameBitsWhereverThingsLie) {
  const HostTensor image = vbench_golden("dino_golden", "image_48x80");
  const DinoNetwork dino = DinoNetwork::load(place(), vbench_weights("dino_hub"));
  const int64_t free = memory_->available();
  const HostTensor first = dino.features(place(), image);
  EXPECT_EQ(memory_->available(), free);
  void* other = memory_->allocate(1 << 20, "other");
  EXPECT_TRUE(same_bits(dino.features(place(), image), first));
  memory_->release(other);
}

// Videos are several threads' work, the device is one's at a time.
TEST_F(VisionDevice, ThreadsTakeTurns) {
  const TemporaryFolder folder;
  folder.copy(vbench_data("dino_hub"), "dino_vitb16.safetensors");
  std::vector<std::string> warnings;
  ThreadPool pool(3);
  const EvalNetworks networks(inspect_weights(folder.path(), warnings), {"subject_consistency"}, DType::kF32, pool, false, &*memory_);
  EXPECT_TRUE(networks.on_device());
  const HostTensor image = vbench_golden("dino_golden", "image_48x80");
  const auto feature = [&] { return networks.dino().features(EvalNetworks::Turn(networks, pool).place(), image); };
  const HostTensor alone = feature();
  std::vector<HostTensor> together(6);
  pool.parallel_for(6, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) together[static_cast<size_t>(i)] = feature();
  });
  for (const HostTensor& f : together) EXPECT_TRUE(same_bits(f, alone));
}

TEST_F(VisionDevice, TooLittleMemoryIsAnErrorThatNamesIt) {
  const int64_t budget = memory_->available() - (int64_t{1} << 20);  // all but too little
  void* rest = memory_->allocate(budget, "rest");
  expect_contains(error_of([&] { DinoNetwork::load(place(), vbench_weights("dino_hub")); }), "out of device memory: ");
  memory_->release(rest);
}

}  // namespace
}  // namespace megaslide
