// Whole networks that score frames, their kernels' CUDA entries in place of the CPU's: the tiny ones of tests/data/vbench against their
// goldens. A kernel without such an entry fails, and so does one that leaves to the next what that does not expect.
#include <algorithm>
#include <functional>

#include "tests/cuda/gemm_layer.h"
#include "tests/vision/reference_pixels.h"
#include "vision/amt.h"
#include "vision/clip.h"
#include "vision/dino.h"
#include "vision/musiq.h"
#include "vision/raft.h"
#include "vision/viclip.h"

namespace megaslide {
namespace {

// Runs the CUDA entry of each call at once, on host memory.
class DeviceStream final : public Stream {
 public:
  Backend backend() const override { return Backend::kCuda; }
  void enqueue(const char*, const Cost&, std::function<void()> work) override {
    work();
    testing_support::finish_device_work();
  }
  ThreadPool& pool() override { return pool_; }

 private:
  ThreadPool pool_{1};
};

class CudaNetworks : public testing::Test {
 protected:
  DeviceStream stream_;
  testing_support::Workspace workspace_{size_t{16} << 20};
};

// Tolerances are those of tests/vision, where their reasons stand: the CPU's sums are in another order than the goldens' too.

TEST_F(CudaNetworks, Raft) {
  const HostTensor video = vbench_tensor("raft_golden", "video");
  const Raft raft = Raft::open(stream_, vbench_file("raft_things_names.safetensors"));
  const auto frame = [&](int64_t i) { return raft.frame(stream_, reinterpret_cast<const uint8_t*>(video.data()) + i * 128 * 144 * 3, 144, 128); };
  EXPECT_LT(distance(raft.flow(stream_, frame(0), frame(1), 1), vbench_tensor("raft_golden", "flow_iter1")), 1.6e-5);
}

TEST_F(CudaNetworks, Amt) {
  if (testing_support::under_emulator) GTEST_SKIP() << "takes half a minute under the emulator; its kernels are tested one by one";
  const HostTensor video = vbench_tensor("amt_golden", "video");
  const Amt amt(stream_, NetworkWeights::open(vbench_file("amt_names.safetensors")));
  const auto* first = reinterpret_cast<const uint8_t*>(video.data());
  EXPECT_LT(distance(amt.predict(stream_, first, first + 2 * 121 * 133 * 3, 133, 121), vbench_tensor("amt_golden", "prediction")), 6e-5);
}

TEST_F(CudaNetworks, Dino) {
  const DinoNetwork dino = DinoNetwork::load(stream_, vbench_weights("dino_hub"));
  for (const std::string image : {"48x80", "70x37"})
    EXPECT_LT(distance(dino.features(stream_, vbench_golden("dino_golden", "image_" + image)), vbench_golden("dino_golden", "feature_" + image)), 1.5e-6) << image;
  const DinoNetwork narrow = DinoNetwork::load(stream_, vbench_weights("dino_hub"), DType::kBF16);
  EXPECT_LT(distance(narrow.features(stream_, vbench_golden("dino_golden", "image_48x80")), vbench_golden("dino_golden", "feature_48x80")), 1.5e-2);
}

TEST_F(CudaNetworks, ClipsTexts) {
  const ClipNetwork clip = ClipNetwork::load(stream_, vbench_weights("clip_openai"));
  const HostTensor want = vbench_golden("clip_golden", "text_features");
  for (int64_t i = 0; i < 2; ++i) EXPECT_LT(distance(clip.text_features(stream_, golden_ids("clip_golden", i)), rows_of(want, i, i + 1)), 3.4e-6) << i;
  const ClipNetwork narrow = ClipNetwork::load(stream_, vbench_weights("clip_openai"), DType::kBF16);
  EXPECT_LT(distance(narrow.text_features(stream_, golden_ids("clip_golden", 0)), rows_of(want, 0, 1)), 2.2e-2);
}

TEST_F(CudaNetworks, Viclip) {
  const ViclipNetwork viclip = ViclipNetwork::load(stream_, vbench_weights("viclip_names"));
  const HostTensor pixels = vbench_golden("viclip_golden", "pixels_short"), want = vbench_golden("viclip_golden", "video_features");
  // Eight frames, the last of five stands four times.
  HostTensor clip(DType::kF32, {8, 3, pixels.shape()[2], pixels.shape()[3]});
  const int64_t picture = clip.elements() / 8;
  for (int64_t i = 0; i < 8; ++i) std::copy_n(pixels.f32() + std::min<int64_t>(i, 4) * picture, picture, clip.f32() + i * picture);
  EXPECT_LT(distance(viclip.video_features(stream_, clip), rows_of(want, 1, 2)), 5e-6);
  EXPECT_LT(distance(viclip.text_features(stream_, golden_ids("viclip_golden", 0)), rows_of(vbench_golden("viclip_golden", "text_features"), 0, 1)), 5e-6);
}

// The part of MUSIQ that is not a transformer: golden patches (N,C,h,w) in, maps (N,C,h,w) out.
TEST_F(CudaNetworks, MusiqsStem) {
  const HostTensor patches = vbench_golden("musiq_golden", "portrait.patches"), want = vbench_golden("musiq_golden", "portrait.stem");
  const MusiqNetwork musiq = MusiqNetwork::load(stream_, vbench_weights("musiq_names"), vbench_json("musiq").at("config").at("heads").get<int64_t>());
  const auto swapped = [](const HostTensor& t, int64_t n, int64_t rows, int64_t columns) {  // (N,rows,columns) to (N,columns,rows)
    HostTensor out(DType::kF32, {n * rows * columns});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) out.f32()[(i * columns + c) * rows + r] = t.f32()[(i * rows + r) * columns + c];
    return out;
  };
  const int64_t n = patches.shape()[0], cells = kMusiqPatch * kMusiqPatch, channels = want.shape()[1];
  HostTensor pixels(DType::kF32, {n, kMusiqPatch, kMusiqPatch, 3});
  std::copy_n(swapped(patches, n, 3, cells).f32(), pixels.elements(), pixels.f32());
  const HostTensor got = musiq.stem().forward(stream_, pixels).to_host(stream_);
  EXPECT_LT(distance(swapped(got, n, got.elements() / n / channels, channels), want), 5e-5);
}

}  // namespace
}  // namespace megaslide
