// What each part of the schedule gains: the same model with and without it, measured on the cpu device behind an emulated
// link and predicted by the sim device at rates measured in the same run. The variants of a row take turns step by step, so
// that a disturbance of the machine falls on both.
//   ablations [STEPS] [WIDTH] [LAYERS] [TOKENS_A_SIDE]
// One thread a stream: compute has a core of its own, and so has the host's Adam, as beside a real device.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "config/load.h"
#include "diffusion/flow_matching.h"
#include "model/init_model.h"
#include "model/wan.h"
#include "plan/calibrate.h"
#include "train/setup.h"
#include "train/training_data.h"

using namespace megaslide;

namespace {

constexpr int kThreads = 1;

struct Setting {
  ModelConfig model;
  BatchShape shape;
  MachineConfig machine;
};

// One way to run a step.
struct Variant {
  std::vector<std::string> sets = {};
  double bandwidth = 0;         // of the link, bytes/s; 0: as fast as memory
  bool update_at_once = false;  // Adam after the backward, not under the next forward
  bool upload_again = false;
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

HostBatch random_batch(const Setting& s) {
  HostBatch b;
  b.shape = s.shape;
  const Shape latent{1, s.model.in_channels, s.shape.frames, s.shape.height * 2, s.shape.width * 2};
  b.latent = HostTensor(DType::kF32, latent);
  b.target = HostTensor(DType::kF32, latent);
  b.text = HostTensor(DType::kF32, {1, s.shape.context_rows, s.model.text_dim});
  b.timesteps = HostTensor(DType::kF32, {1});
  uint64_t series = 0;
  for (HostTensor* t : {&b.latent, &b.target, &b.text}) fill_normal({t->f32(), static_cast<size_t>(t->elements())}, 1, RandomPurpose::kTest, series++);
  b.timesteps.f32()[0] = 500;
  return b;
}

// A model, its state and a device, on which steps are made one at a time.
class Session {
 public:
  Session(const Setting& s, const Variant& v, bool simulated)
      : variant_(v), run_(run_of(v)), network_(make_wan_network(s.model)), store_(network_, host_store_options(run_, simulated)),
        device_(simulated ? make_sim_device(simulated_link(s, v)) : make_cpu_device(cpu_device_options(run_, kThreads, false))), batch_(random_batch(s)) {
    if (!simulated) fill();
    PipelineOptions o = pipeline_options(run_, s.model, {s.shape}, {}, 1);
    o.upload_again = v.upload_again;
    step_ = std::make_unique<TrainStep>(*device_, network_, store_, o, optimizer_options(run_), 0);
  }

  double step() {
    device_->take_times();
    const double begin = device_->now();
    const MicroBatch view = batch_.view();
    step_->begin({&view, 1}, 1e-4);
    step_->finish();
    if (variant_.update_at_once) step_->drain();
    times_ = device_->take_times();
    return device_->now() - begin;
  }

  double compute_seconds() const { return times_.busy[static_cast<size_t>(StreamKind::kCompute)]; }
  // Of a step: layers twice but for those in their slots, both ends once.
  int64_t uploaded_bytes() const {
    int64_t bytes = 0;
    for (int m = 0; m < store_.modules(); ++m) {
      const int64_t each = store_.module(m).module->layout().elements * dtype_bytes(store_.options().compute_dtype);
      const bool twice = m >= 1 && m + 1 < store_.modules() - static_cast<int>(run_.stream.slots);
      bytes += twice ? 2 * each : each;
    }
    return bytes;
  }

 private:
  static RunConfig run_of(const Variant& v) {
    std::vector<std::string> sets = v.sets;
    sets.insert(sets.end(), {"stream.link.kind=emulated", fmt::format("stream.link.bandwidth={:.0f}", v.bandwidth)});
    return make_run_config(sets);
  }
  SimDeviceOptions simulated_link(const Setting& s, const Variant& v) const {
    MachineConfig machine = s.machine;
    machine.unified = false;  // a core for the compute stream, another for the host's
    if (v.bandwidth > 0) machine.link_up = machine.link_down = v.bandwidth;
    return sim_device_options(run_, machine, false);
  }
  void fill() {
    ThreadPool pool(kThreads);
    for (int m = 0; m < store_.modules(); ++m) {
      const Module& module = *store_.module(m).module;
      for (size_t i = 0; i < module.params().size(); ++i) {
        std::vector<float> p(static_cast<size_t>(element_count(module.params()[i].shape)));
        fill_initial(p, module.params()[i], 3, static_cast<uint64_t>(m) << 32 | i);
        store_.write_master(pool, m, module.layout().offset[i], static_cast<int64_t>(p.size()), p.data());
      }
    }
  }

  Variant variant_;
  RunConfig run_;
  Network network_;
  HostStore store_;
  std::unique_ptr<Device> device_;
  HostBatch batch_;
  StreamTimes times_;
  std::unique_ptr<TrainStep> step_;
};

// Two steps bring the schedule to its steady state.
double predicted(const Setting& s, const Variant& v) {
  Session session(s, v, true);
  session.step();
  session.step();
  return session.step();
}

void row(const Setting& s, int steps, const char* name, const Variant& without, const Variant& with) {
  Session a(s, without, false), b(s, with, false);
  std::vector<double> seconds[2], ratios;
  for (int i = -2; i < steps; ++i) {
    const double ta = a.step(), tb = b.step();
    if (i < 0) continue;
    seconds[0].push_back(ta);
    seconds[1].push_back(tb);
    ratios.push_back(ta / tb);
  }
  const double pa = predicted(s, without), pb = predicted(s, with);
  fmt::print("{:<52} {:>8.4f} {:>8.4f} {:>6.2f}   {:>8.4f} {:>8.4f} {:>6.2f}\n", name, median(seconds[0]), median(seconds[1]), median(ratios), pa, pb, pa / pb);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::stoi(argv[i]) : otherwise; };
  const int steps = argument(1, 15), width = argument(2, 512), layers = argument(3, 8), side = argument(4, 8);
  Setting s;
  s.model.name = "ablations";
  s.model.dim = width, s.model.heads = width / 64, s.model.ffn_dim = 4 * width, s.model.layers = layers;
  s.model.text_dim = 256, s.model.text_len = 32, s.model.freq_dim = 256;
  s.shape = {.batch = 1, .frames = 4, .height = side, .width = side, .context_rows = 32};
  s.machine = calibrate({.threads = kThreads, .model = s.model, .shape = s.shape, .scratch_dir = {}}, {});

  double compute = 0;
  int64_t bytes = 0;
  {
    Session alone(s, {.update_at_once = true}, false);
    std::vector<double> seconds;
    for (int i = 0; i < 8; ++i) {
      alone.step();
      seconds.push_back(alone.compute_seconds());
    }
    compute = median(seconds);
    bytes = alone.uploaded_bytes();
  }
  // The link on which the uploads of a step take `ratio` times as long as its computation.
  const auto link = [&](double ratio) { return static_cast<double>(bytes) / (compute * ratio); };
  fmt::print("width {}, {} layers, {} tokens: {:.4f} s of computation, {} bytes uploaded a step; {} steps a row, one thread a stream\n", width, layers,
             s.shape.rows(), compute, bytes, steps);
  fmt::print("{:<52} {:>24}   {:>24}\n{:<52} {:>8} {:>8} {:>6}   {:>8} {:>8} {:>6}\n", "", "measured", "predicted", "seconds a step", "without", "with", "ratio",
             "without", "with", "ratio");
  for (const double ratio : {0.25, 0.5, 1.0, 2.0})
    row(s, steps, fmt::format("asynchronous, upload : compute {}", ratio).c_str(), {.sets = {"stream.async=false"}, .bandwidth = link(ratio)},
        {.bandwidth = link(ratio)});
  for (const double ratio : {0.5, 1.0}) {
    row(s, steps, fmt::format("Adam under the next forward, upload : compute {}", ratio).c_str(), {.bandwidth = link(ratio), .update_at_once = true},
        {.bandwidth = link(ratio)});
    row(s, steps, fmt::format("two uploads, not three, upload : compute {}", ratio).c_str(), {.bandwidth = link(ratio), .upload_again = true},
        {.bandwidth = link(ratio)});
    row(s, steps, fmt::format("Adam on the host, not the device, upload : compute {}", ratio).c_str(),
        {.sets = {"optimizer.device=device"}, .bandwidth = link(ratio)}, {.bandwidth = link(ratio)});
  }
  return 0;
}
