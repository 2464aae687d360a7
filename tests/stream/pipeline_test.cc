#include "stream/pipeline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <list>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "base/sha256.h"
#include "edge_dropping_device.h"
#include "toy_network.h"

namespace megaslide {
namespace {

using testing::Edge;
using testing::EdgeDroppingDevice;

constexpr int64_t kWidth = 192;
constexpr int kLayers = 5;

struct Inputs : testing::ToyInputs {
  explicit Inputs(int series) : ToyInputs(kWidth, {1, 2, 3, 2, 1}, static_cast<uint64_t>(series)) {}
};

// Steps of plain gradient descent, each module's update queued on the host stream ahead of its upload.
struct Settings {
  int steps = 4, slots = 2, microbatches = 2;
  DType compute_dtype = DType::kBF16, gradients = DType::kBF16;
  double update_seconds = 0;  // how long the optimizer of a module takes
  StashOptions stash = {};
  int64_t slab_frames = 0;
  double busy_seconds = 0;  // what the download stream does else after the gradients of a module
};

std::string train(Device& device, const Settings& run, std::vector<double>* losses = nullptr, int64_t* uploads = nullptr) {
  const Network network = testing::toy_network(kWidth, kLayers);
  HostStore store(network, {run.compute_dtype, true, MasterCodec::kSplit, run.gradients, false});
  testing::fill_toy(store);
  std::vector<bool> due(static_cast<size_t>(store.modules()), false);
  std::vector<float> scratch(1 << 12);
  auto update = [&](int m, const Event&) -> Event {
    if (!due[static_cast<size_t>(m)]) return {};
    due[static_cast<size_t>(m)] = false;
    device.host().enqueue("descend", {}, [&store, m, run] {
      std::this_thread::sleep_for(std::chrono::duration<double>(run.update_seconds));
      ThreadPool pool(1);
      const int64_t n = store.module(m).module->layout().elements;
      std::vector<float> p(static_cast<size_t>(n));
      store.read_master(pool, m, 0, n, p.data());
      for (int64_t i = 0; i < n; ++i) p[static_cast<size_t>(i)] -= 0.05f * testing::weight_at(store.module(m).gradient, run.gradients, i);
      store.write_master(pool, m, 0, n, p.data());
    });
    return device.record(device.host());
  };
  // Checksums of the gradients as they arrive: what the norm of a real run reads.
  std::vector<double> sums(static_cast<size_t>(store.modules()), 0), history;
  auto arrived = [&](int m, const Event& e) {
    if (run.busy_seconds > 0)
      device.download().enqueue("busy", {}, [run] { std::this_thread::sleep_for(std::chrono::duration<double>(run.busy_seconds)); });
    device.wait(device.host(), e);
    device.host().enqueue("sum", {}, [&sums, &store, m, run] {
      double s = 0;
      for (int64_t i = 0; i < store.module(m).module->layout().elements; ++i) s += testing::weight_at(store.module(m).gradient, run.gradients, i);
      sums[static_cast<size_t>(m)] = s;
    });
  };
  PipelineOptions o;
  o.compute_dtype = run.compute_dtype;
  o.training = true;
  o.slots = run.slots;
  o.shapes = {Inputs(0).shape};
  o.max_microbatches = run.microbatches;
  o.stash = run.stash;
  o.slab_frames = run.slab_frames;
  // Until the end of the run: where an edge is missing a step may be read after its last event.
  std::list<std::vector<Inputs>> kept;
  Pipeline pipeline(device, network, store, o, {.before_upload = update, .gradient_ready = arrived});
  for (int step = 0; step < run.steps; ++step) {
    std::vector<Inputs>& inputs = kept.emplace_back();
    for (int a = 0; a < run.microbatches; ++a) inputs.emplace_back(step * 10 + a);
    std::vector<MicroBatch> batches;
    for (const auto& i : inputs) batches.push_back(i.batch());
    pipeline.invalidate_weights();
    device.synchronize(pipeline.train(batches));
    device.synchronize(device.record(device.host()));
    for (int a = 0; a < run.microbatches; ++a) {
      history.push_back(pipeline.losses()[a]);
      if (losses) losses->push_back(pipeline.losses()[a]);
    }
    history.insert(history.end(), sums.begin(), sums.end());
    due.assign(due.size(), true);
  }
  for (int m = 0; m < store.modules(); ++m) update(m, {});
  device.synchronize();
  if (uploads) *uploads = pipeline.weight_uploads();
  Sha256 hash;
  ThreadPool pool(1);
  hash.update(std::as_bytes(std::span(history)));
  for (int m = 0; m < store.modules(); ++m) {
    const int64_t n = store.module(m).module->layout().elements;
    std::vector<float> p(static_cast<size_t>(n));
    store.read_master(pool, m, 0, n, p.data());
    hash.update(std::as_bytes(std::span(p)));
  }
  return hash.hex();
}

std::string train(const CpuDeviceOptions& options, const Settings& run) {
  const auto device = make_cpu_device(options);
  return train(*device, run);
}

TEST(Pipeline, LossIsThatOfThePlainProduct) {
  const auto device = make_cpu_device({.threads = 1});
  std::vector<double> losses;
  train(*device, {.steps = 1, .compute_dtype = DType::kF32, .gradients = DType::kF32}, &losses);
  const Network network = testing::toy_network(kWidth, kLayers);
  HostStore store(network, {DType::kF32, true, MasterCodec::kFp32, DType::kF32, false});
  testing::fill_toy(store);
  for (int a = 0; a < 2; ++a) {
    const Inputs in(a);
    double sum = 0;
    for (size_t i = 0; i < in.latent.size(); ++i) {
      double x = in.latent[i];
      for (int m = 0; m < store.modules(); ++m) {
        const ModuleState& s = store.module(m);
        const auto k = static_cast<int64_t>(i) % kWidth;
        x = x * s.master[s.module->layout().offset[0] + k] + s.master[s.module->layout().offset[1] + k];
      }
      sum += (x - in.target[i]) * (x - in.target[i]);
    }
    const double expected = sum / static_cast<double>(in.latent.size());
    EXPECT_NEAR(losses[static_cast<size_t>(a)], expected, 1e-5 * expected);
  }
}

TEST(Pipeline, LossFalls) {
  const auto device = make_cpu_device({.threads = 2});
  std::vector<double> losses;
  train(*device, {.steps = 40, .microbatches = 1}, &losses);
  EXPECT_LT(losses.back(), 0.9 * losses.front());
}

TEST(Pipeline, SameBitsWhateverTheSchedule) {
  const Settings run;
  const std::string expected = train({.threads = 1, .async = false}, run);
  EXPECT_EQ(train({.threads = 2}, run), expected);
  EXPECT_EQ(train({.threads = 2, .link = LinkKind::kEmulated}, run), expected);
  EXPECT_EQ(train({.threads = 1, .async = false, .link = LinkKind::kEmulated}, run), expected);
  EXPECT_EQ(train({.threads = 2, .link = LinkKind::kEmulated, .jitter = 5e-4}, run), expected);
  EXPECT_EQ(train({.threads = 2, .link = LinkKind::kShared, .jitter = 5e-4}, run), expected);
  Settings more_slots = run;
  more_slots.slots = 4;
  EXPECT_EQ(train({.threads = 2, .link = LinkKind::kEmulated}, more_slots), expected);
}

TEST(Pipeline, SameBitsWhereverInputsWait) {
  Settings run;
  const std::string expected = train({.threads = 1, .async = false}, run);
  for (const StashPlace place : {StashPlace::kDevice, StashPlace::kHost})
    for (const int segment : {1, 2, 3, 4, kLayers, kLayers + 3})
      for (const int slots : {2, 3}) {
        run.stash = {place, segment};
        run.slots = slots;
        EXPECT_EQ(train({.threads = 1, .async = false}, run), expected) << segment;
        EXPECT_EQ(train({.threads = 2, .link = LinkKind::kEmulated, .jitter = 3e-4}, run), expected) << segment;
        EXPECT_EQ(train({.threads = 2, .link = LinkKind::kShared, .jitter = 3e-4}, run), expected) << segment;
      }
}

// Of five layers: kept on the device are inputs 0, k, 2k … up to that of the head, and k − 1 of a segment.
TEST(Pipeline, SegmentsAndTheHostSpareTheDevice) {
  const Inputs in(0);
  const auto plan = [&](const StashOptions& stash) {
    const auto sim = make_sim_device({});
    const Network network = testing::toy_network(kWidth, kLayers);
    HostStore store(network, {DType::kBF16, true, MasterCodec::kSplit, DType::kBF16, true});
    PipelineOptions o;
    o.training = true;
    o.shapes = {in.shape};
    o.stash = stash;
    Pipeline pipeline(*sim, network, store, o);
    return std::pair{sim->memory().peak, pipeline.host_stash_bytes()};
  };
  const int64_t input = in.shape.rows() * kWidth * 4;
  ASSERT_EQ(input % 256, 0);
  const auto all = plan({});
  EXPECT_EQ(all.second, 0);
  for (const auto& [segment, places] : {std::pair{2, 3 + 1}, {3, 2 + 2}, {5, 2 + 4}}) {
    EXPECT_EQ(all.first - plan({StashPlace::kDevice, segment}).first, (kLayers + 1 - places) * input) << segment;
    EXPECT_EQ(all.first - plan({StashPlace::kHost, segment}).first, (kLayers + 1 - 2 - (segment - 1)) * input) << segment;
  }
  const auto host = plan({StashPlace::kHost, 1});
  EXPECT_EQ(all.first - host.first, (kLayers + 1 - 2) * input);
  const int64_t pages = (input + 4095) / 4096 * 4096;
  EXPECT_EQ(host.second, (kLayers + 1 - 2) * pages) << "the last two are still on the device when they are needed";
}

// With two slots a segment of three layers, 0 1 2, is uploaded as 0 1 2 0: layers 1 and 2 are still there for the backward.
TEST(Pipeline, SegmentsLongerThanTheSlotsAreUploadedAgain) {
  for (const auto& [segment, uploads] : {std::pair{1, 8}, {2, 8}, {3, 9}, {5, 8}}) {
    const auto device = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated});
    int64_t counted = 0;
    train(*device, {.steps = 3, .stash = {StashPlace::kDevice, segment}}, nullptr, &counted);
    EXPECT_EQ(counted, 3 * uploads) << segment;
  }
}

TEST(Pipeline, UploadsEachLayerTwiceLessTheOnesStillInTheirSlots) {
  for (const int slots : {2, 3, 5}) {
    const auto device = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated});
    int64_t uploads = 0;
    train(*device, {.steps = 3, .slots = slots}, nullptr, &uploads);
    EXPECT_EQ(uploads, 3 * (2 * kLayers - slots)) << slots;
  }
}

TEST(Pipeline, EveryEdgeIsNeeded) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "races on purpose, which is what ThreadSanitizer reports";
#endif
  using enum StreamKind;
  struct Case {
    Edge edge;
    const char* what;
    int slots = 2;
    double bandwidth = 0, update_seconds = 0;
    StashOptions stash = {};
    int64_t slab_frames = 0;
    double busy_seconds = 0;
    int microbatches = 2;
  };
  for (const Case& c : {Case{{kUpload, kHost}, "upload before its optimizer", 2, 0, 4e-3},
                        Case{{kUpload, kCompute}, "upload into a slot that is still read"},
                        Case{{kCompute, kUpload}, "compute before its upload"},
                        Case{{kDownload, kCompute}, "download before the conversion"},
                        // Only a slow link falls two gradients behind; with every layer in a slot no upload slows the rest.
                        Case{{kCompute, kDownload}, "conversion over a buffer that is still leaving", kLayers, 1e5},
                        Case{{kHost, kDownload}, "norm before its download"},
                        Case{{kDownload, kCompute}, "input that leaves before it is there", kLayers, 0, 0, {StashPlace::kHost, 1}},
                        Case{{kCompute, kDownload}, "input over one that is still leaving", kLayers, 1e6, 0, {StashPlace::kHost, 1}},
                        Case{{kUpload, kCompute}, "input that returns over one that is still read", kLayers, 0, 0, {StashPlace::kHost, 1}},
                        Case{{kCompute, kUpload}, "input before its return", kLayers, 1e6, 0, {StashPlace::kHost, 1}},
                        // With more slabs the places on the device, of which there are two, imply it.
                        Case{{kUpload, kDownload}, "slab that returns before it has left", kLayers, 0, 0, {}, 1, 1e-2, 1},
                        Case{{kUpload, kCompute}, "slab over one that is still read", kLayers, 0, 0, {}, 1},
                        Case{{kCompute, kUpload}, "slab before it is there", kLayers, 1e7, 0, {}, 1},
                        Case{{kCompute, kDownload}, "slab over one that is still leaving", kLayers, 0, 0, {}, 1, 5e-3},
                        Case{{kDownload, kCompute}, "slab that leaves before it is computed", kLayers, 0, 0, {}, 1}}) {
    const Settings run{.steps = 4, .slots = c.slots, .microbatches = c.microbatches, .update_seconds = c.update_seconds, .stash = c.stash,
                       .slab_frames = c.slab_frames, .busy_seconds = c.busy_seconds};
    const std::string expected = train({.threads = 1}, run);
    bool noticed = false;
    for (int attempt = 0; attempt < 10 && !noticed; ++attempt) {
      const auto inner = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated, .bandwidth = c.bandwidth, .jitter = 1e-3});
      EdgeDroppingDevice device(*inner, c.edge);
      noticed = train(device, run) != expected;
      EXPECT_GT(device.dropped, 0);
    }
    EXPECT_TRUE(noticed) << c.what;
  }
}

TEST(Pipeline, SimulatedPeakEqualsTheRealOne) {
  for (const LinkKind link : {LinkKind::kShared, LinkKind::kEmulated})
    for (const bool async : {true, false})
      for (const int microbatches : {1, 3}) {
        Settings run;
        run.microbatches = microbatches;
        run.steps = 1;
        const auto cpu = make_cpu_device({.threads = 1, .async = async, .link = link});
        train(*cpu, run);
        const auto sim = make_sim_device({.rates = {}, .async = async, .link = link});
        const Network network = testing::toy_network(kWidth, kLayers);
        HostStore store(network, {DType::kBF16, true, MasterCodec::kSplit, DType::kBF16, true});
        PipelineOptions o;
        o.training = true;
        o.shapes = {Inputs(0).shape};
        o.max_microbatches = microbatches;
        Pipeline pipeline(*sim, network, store, o);
        const Inputs in(0);
        pipeline.train(std::vector<MicroBatch>(static_cast<size_t>(microbatches), in.batch()));
        EXPECT_EQ(sim->memory().peak, cpu->memory().peak);
      }
}

// A store for sampling, and what a fresh pipeline predicts.
struct Predictor {
  Network network = testing::toy_network(kWidth, kLayers);
  HostStore store{network, {}};
  Predictor() { testing::fill_toy(store); }
  std::vector<float> predict(const Inputs& in) {
    const auto device = make_cpu_device({.threads = 1, .async = false});
    PipelineOptions o;
    o.shapes = {in.shape};
    Pipeline pipeline(*device, network, store, o);
    std::vector<float> out(in.latent.size());
    device->synchronize(pipeline.predict(in.batch(), out.data()));
    return out;
  }
};

TEST(Pipeline, ResultsLeaveBeforeTheNextPassOverwritesThem) {
  Predictor p;
  const Inputs a(1), b(2);
  const auto device = make_cpu_device({.threads = 1, .link = LinkKind::kEmulated});
  PipelineOptions o;
  o.shapes = {a.shape};
  Pipeline pipeline(*device, p.network, p.store, o);
  std::vector<float> out_a(a.latent.size()), out_b(b.latent.size());
  double loss_a = 0, loss_b = 0;
  device->download().enqueue("busy", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  pipeline.predict(a.batch(), out_a.data());
  pipeline.predict(b.batch(), out_b.data());
  device->synchronize();
  EXPECT_EQ(out_a, p.predict(a));
  EXPECT_EQ(out_b, p.predict(b));
  device->download().enqueue("busy", {}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  pipeline.evaluate(a.batch(), &loss_a);
  pipeline.evaluate(b.batch(), &loss_b);
  device->synchronize();
  EXPECT_NE(loss_a, loss_b) << "the first loss is not the second's";
}

TEST(Pipeline, ShapesOfPredictionAloneCostNoTrainingMemory) {
  Predictor p;
  Inputs large(3);
  large.shape.frames *= 4;
  for (int i = 0; i < 2; ++i) {
    large.latent.insert(large.latent.end(), large.latent.begin(), large.latent.end());
    large.target.insert(large.target.end(), large.target.begin(), large.target.end());
  }
  const Network network = testing::toy_network(kWidth, kLayers);
  HostStore store(network, {.training = true});
  testing::fill_toy(store);
  PipelineOptions o;
  o.training = true;
  o.shapes = {Inputs(0).shape};
  o.max_microbatches = 3;
  const auto peak = [&] {
    const auto sim = make_sim_device({});
    Pipeline pipeline(*sim, network, store, o);
    return sim->memory().peak;
  };
  const int64_t small = peak();
  o.predict_shapes = {large.shape};
  const int64_t both = peak();
  const auto device = make_cpu_device({.threads = 1});
  Pipeline pipeline(*device, network, store, o);
  std::vector<float> out(large.latent.size());
  device->synchronize(pipeline.predict(large.batch(), out.data()));
  EXPECT_EQ(out, p.predict(large));
  o.shapes.push_back(large.shape);
  o.predict_shapes.clear();
  EXPECT_GT(peak() - small, 4 * (both - small)) << "one microbatch of two inputs, instead of three of one a layer and gradients";
}

}  // namespace
}  // namespace megaslide
