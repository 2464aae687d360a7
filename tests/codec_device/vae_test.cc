// The autoencoders on the cuda device, over the mock of the CUDA runtime.
#include <gtest/gtest.h>

#include "base/error.h"
#include "diffusion/device_memory.h"
#include "tests/mock_cuda/mock_runtime.h"
#include "tests/vae/vae_files.h"

namespace megaslide {
namespace {

using mock_cuda::runtime_counts;
using mock_cuda::RuntimeCounts;
using mock_cuda::set_runtime_faults;
using namespace testing_support;

// As for the processor (tests/vae/golden_test.cc): three times the noise that the fp32 run of diffusers has against its
// fp64 run, and in bf16 the noise of its bf16 run. So the device is within twice that of the processor.
constexpr double kNoiseFactor = 3, kBf16Error = 0.0128;

struct CudaPart {
  explicit CudaPart(int64_t budget = 0)
      : device(make_cuda_device({.threads = 2, .budget = budget})), memory(*device) {}
  std::unique_ptr<Device> device;
  DeviceModelMemory memory;
};

class CodecDevice : public testing::Test {
 protected:
  void SetUp() override { set_runtime_faults({}); }
  void TearDown() override { EXPECT_EQ(runtime_counts().live, 0); }
};

struct Case {
  std::string kind;
  DType dtype;
};

void compare(const Case& c) {
  const auto io = SafetensorsFile::open(vae_data(c.kind) + "/io.safetensors");
  const nlohmann::json noise = read_json(vae_data(c.kind) + "/meta.json")["noise_fp32"];
  ThreadPool pool(2);
  CudaPart cuda;
  WanVaeOptions options{.decode_dtype = c.dtype, .encode_dtype = c.dtype, .tiling = {}};
  const WanVae cpu(vae_data(c.kind), "test", options);
  options.memory = &cuda.memory;
  const int64_t before = cuda.memory.available();
  {
    const WanVae vae(vae_data(c.kind), "test", options);
    const auto near = [&](const HostTensor& got, const HostTensor& on_cpu, const std::string& name) {
      const double limit = c.dtype == DType::kBF16 ? kBf16Error : kNoiseFactor * noise[name].get<double>();
      EXPECT_LE(distance(got, golden(io, name)), limit) << c.kind << " " << name;
      EXPECT_LE(distance(got, on_cpu), 2 * limit) << c.kind << " " << name;
    };
    const HostTensor video = golden(io, "f5.video"), latent = golden(io, "f5.latent_normalised");
    const VideoCodec::Encoded e = vae.encode_moments(pool, video.view()), on_cpu = cpu.encode_moments(pool, video.view());
    near(e.mean, on_cpu.mean, "f5.mean");
    near(e.logvar, on_cpu.logvar, "f5.logvar");
    near(e.normalised, on_cpu.normalised, "f5.mean_normalised");
    near(clamped(vae.decode(pool, latent.view())), clamped(cpu.decode(pool, latent.view())), "f5.frames");
  }
  EXPECT_EQ(cuda.memory.available(), before);
  EXPECT_EQ(runtime_counts().pageable_copies, 0);
  EXPECT_EQ(runtime_counts().synchronous_copies, 0);
}

TEST_F(CodecDevice, Vae21NearTheGoldenFramesAndTheCpu) { compare({"w21", DType::kF32}); }
TEST_F(CodecDevice, Vae22NearTheGoldenFramesAndTheCpu) { compare({"w22", DType::kF32}); }
TEST_F(CodecDevice, Vae21InBf16) { compare({"w21", DType::kBF16}); }
TEST_F(CodecDevice, Vae22InBf16) { compare({"w22", DType::kBF16}); }

// What a frame costs beside kernels is its copies: nothing is made for it, nothing waits for the whole device.
TEST_F(CodecDevice, LongerClipsAllocateAndSynchronizeNoMore) {
  ThreadPool pool(2);
  CudaPart cuda;
  const WanVae vae(vae_data("w21"), "test", {.tiling = {}, .memory = &cuda.memory});
  const auto decode = [&](int64_t frames) {
    const RuntimeCounts before = runtime_counts();
    vae.decode(pool, random_tensor({16, frames, 1, 1}, 2).view());
    const RuntimeCounts after = runtime_counts();
    return std::array{after.allocations - before.allocations, after.synchronizations - before.synchronizations,
                      after.copies - before.copies};
  };
  decode(1);  // reads the weights
  const auto two = decode(2), three = decode(3);
  EXPECT_EQ(two[0], 0);
  EXPECT_EQ(three[0], 0);
  EXPECT_EQ(three[1], two[1]);
  EXPECT_EQ(three[2] - two[2], 16 + 4 * 3) << "planes of one latent frame and of four pictures";
}

// The bits depend neither on when copies pass nor on where in the device's memory things lie.
TEST_F(CodecDevice, SameBitsWhateverTheScheduleLeavesOpen) {
  ThreadPool pool(2);
  const HostTensor latent = random_tensor({16, 2, 1, 1}, 2), video = random_tensor({3, 5, 8, 8}, 1, 0.5);
  std::vector<HostTensor> frames, moments;
  for (const double jitter : {0.0, 0.001}) {
    set_runtime_faults({.slow_copy_us = jitter > 0 ? 500 : 0});
    const auto device = make_cuda_device({.threads = 2, .jitter = jitter});
    DeviceModelMemory memory(*device);
    void* other = jitter > 0 ? memory.allocate(1 << 20, "other") : nullptr;
    {
      const WanVae vae(vae_data("w21"), "test", {.tiling = {}, .memory = &memory});
      frames.push_back(vae.decode(pool, latent.view()));
      moments.push_back(vae.run_encoder(pool, video.view()));
    }
    if (other) memory.release(other);
  }
  EXPECT_EQ(distance(frames[0], frames[1]), 0);
  EXPECT_EQ(distance(moments[0], moments[1]), 0);
}

TEST_F(CodecDevice, TilesNearThoseOfTheCpu) {
  ThreadPool pool(2);
  CudaPart cuda;
  WanVaeOptions options{.tiling = {.enabled = true, .tile = 32, .stride = 16}};
  const WanVae cpu(vae_data("w22"), "test", options);
  options.memory = &cuda.memory;
  const WanVae vae(vae_data("w22"), "test", options);
  const int64_t s = cpu.spatial_stride();
  const HostTensor latent = random_tensor({cpu.channels(), 1, 1, 3}, 3), video = random_tensor({3, 1, s, 3 * s}, 4, 0.5);
  EXPECT_LE(distance(vae.decode(pool, latent.view()), cpu.decode(pool, latent.view())), 1e-5);
  EXPECT_LE(distance(vae.encode(pool, video.view()), cpu.encode(pool, video.view())), 1e-5);
}

// What is said to be needed is what is taken: with a byte less, an error before anything is done; with just that, frames.
TEST_F(CodecDevice, NeedsWhatItSays) {
  ThreadPool pool(2);
  const HostTensor latent = random_tensor({16, 1, 1, 1}, 2);
  CudaPart cuda;
  const WanVae vae(vae_data("w21"), "test", {.tiling = {}, .memory = &cuda.memory});
  const int64_t need = vae.decoding_device_bytes(8, 8), free = cuda.memory.available();
  const auto take = [&](int64_t bytes) { return cuda.device->allocate(bytes, "rest", MemoryCategory::kOther); };
  void* rest = take(free - need + 256);
  try {
    vae.decode(pool, latent.view());
    ADD_FAILURE() << "decoded in too little memory";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("of the device's memory to decode"), std::string::npos) << e.what();
    EXPECT_NE(e.remedy().find("--vae-tiling"), std::string::npos);
  }
  EXPECT_EQ(cuda.memory.available(), need - 256);
  cuda.memory.release(rest);
  rest = take(free - need);
  EXPECT_EQ(vae.decode(pool, latent.view()).shape(), (Shape{3, 1, 8, 8}));
  cuda.memory.release(rest);
  EXPECT_EQ(cuda.device->memory().peak, cuda.device->memory().budget);
}

// An error of the runtime on the way is told with its call, and everything is given back.
TEST_F(CodecDevice, FailsWithTheNameOfTheCallAndLeavesNothing) {
  ThreadPool pool(2);
  for (const int64_t at : {60, 400, 900}) {
    set_runtime_faults({});
    CudaPart cuda;
    set_runtime_faults({.fail_at = at, .kind = mock_cuda::RuntimeFaults::Kind::kLaunch});
    const WanVae vae(vae_data("w21"), "test", {.tiling = {}, .memory = &cuda.memory});
    try {
      vae.decode(pool, random_tensor({16, 1, 1, 1}, 2).view());
      ADD_FAILURE() << "no error at call " << at;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("cuda"), std::string::npos) << e.what();
    }
  }
  set_runtime_faults({});
}

}  // namespace
}  // namespace megaslide
