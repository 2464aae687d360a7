// Stored batches, replayed: step<k>.micro<m>.{x0 [B,C,T,h,w], noise, sigma [B], text [B,S,text_dim]}.
#include <algorithm>

#include "base/error.h"
#include "io/safetensors.h"
#include "train/data_sources.h"
#include "train/objective.h"

namespace megaslide {
namespace {

class ReplayData final : public TrainingData {
 public:
  ReplayData(const RunConfig& run, const ModelConfig& model)
      : model_(model), objective_(run, model), path_(run.data.replay), file_(SafetensorsFile::open(run.data.replay)),
        max_steps_(run.train.max_train_steps) {
    for (int64_t step = 1; file_.find(name(step, 0, "x0")); ++step) {
      int micro = 0;
      for (; file_.find(name(step, micro, "x0")); ++micro) {
        const BatchShape s = shape_of(step, micro);
        if (std::find(shapes_.begin(), shapes_.end(), s) == shapes_.end()) shapes_.push_back(s);
      }
      micro_.push_back(micro);
    }
    if (micro_.empty()) throw Error(path_ + ": no stored batches: step1.micro0.x0 is missing", "names are step<k>.micro<m>.{x0,noise,sigma,text}");
    if (static_cast<int64_t>(micro_.size()) < max_steps_)
      throw usage_error(fmt::format("{}: holds {} steps, train.max_train_steps is {}", path_, micro_.size(), max_steps_),
                        fmt::format("--set train.max_train_steps={}", micro_.size()));
  }

  std::vector<BatchShape> shapes() const override { return shapes_; }
  int microbatches(int64_t step) const override { return micro_[static_cast<size_t>(step - 1)]; }
  int max_microbatches() const override { return *std::max_element(micro_.begin(), micro_.end()); }
  int64_t last_step() const override { return max_steps_; }
  int64_t position(int64_t step) const override {
    int64_t sum = 0;
    for (int64_t s = 0; s < std::min(step, static_cast<int64_t>(micro_.size())); ++s) sum += micro_[static_cast<size_t>(s)];
    return sum;
  }
  void resume_after(int64_t, int64_t) override {}  // a step's batches have its number

  HostBatch batch(int64_t step, int micro) const override {
    HostBatch b = objective_.empty_batch(shape_of(step, micro));
    const HostTensor x0 = read(step, micro, "x0", b.latent.shape()), noise = read(step, micro, "noise", b.latent.shape());
    const HostTensor sigma = read(step, micro, "sigma", {b.shape.batch});
    for (int64_t i = 0; i < b.shape.batch; ++i) require_sigma(sigma.f32()[i], step, micro);
    b.text = read(step, micro, "text", b.text.shape());
    const auto n = static_cast<size_t>(x0.elements() / b.shape.batch);
    for (int64_t i = 0; i < b.shape.batch; ++i) {
      const auto at = static_cast<size_t>(i) * n;
      objective_.fill(b, i, {x0.f32() + at, n}, {noise.f32() + at, n}, sigma.f32()[i], true);
    }
    return b;
  }
  int64_t host_bytes() const override {
    int64_t bytes = 0;
    for (const auto& t : file_.tensors()) bytes += t.end - t.begin;
    return bytes;
  }

 private:
  static std::string name(int64_t step, int micro, const char* what) { return fmt::format("step{}.micro{}.{}", step, micro, what); }

  void require_sigma(float s, int64_t step, int micro) const {
    if (!(s >= 0 && s <= 1)) throw Error(fmt::format("{}: {} holds {}", path_, name(step, micro, "sigma"), s), "a noise level lies in 0..1");
    const TimestepDistribution& d = objective_.distribution();
    const double t = static_cast<float>(timestep_of_sigma(s)), low = 1000 * d.low, high = 1000 * d.high;
    if (t < low || (d.high < 1 && t >= high))
      throw Error(fmt::format("{}: {} holds {}, the run trains timesteps from {} to {}", path_, name(step, micro, "sigma"), s, low, high),
                  "change model.expert, train.min_timestep or train.max_timestep");
  }

  BatchShape shape_of(int64_t step, int micro) const {
    const Shape x0 = file_.view(name(step, micro, "x0")).shape, text = file_.view(name(step, micro, "text")).shape;
    if (x0.size() != 5 || text.size() != 3 || text[0] != x0[0] || text[2] != model_.text_dim)
      throw Error(fmt::format("{}: {} {} and its text {} do not go with the model (text_dim {})", path_, name(step, micro, "x0"), to_string(x0),
                              to_string(text), model_.text_dim));
    const Shape latent(x0.begin() + 1, x0.end());
    require_latent(latent, model_, path_);
    return objective_.shape(batch_shape_of(latent, x0[0], text[1], path_));
  }

  HostTensor read(int64_t step, int micro, const char* what, const Shape& shape) const {
    const TensorView v = file_.view(name(step, micro, what));
    if (v.shape != shape)
      throw Error(fmt::format("{}: {} is {}, expected {}", path_, name(step, micro, what), to_string(v.shape), to_string(shape)));
    return read_f32(file_, name(step, micro, what));
  }

  const ModelConfig model_;
  const Objective objective_;
  std::string path_;
  SafetensorsFile file_;
  int64_t max_steps_;
  std::vector<BatchShape> shapes_;
  std::vector<int> micro_;
};

}  // namespace

std::unique_ptr<TrainingData> open_replay_data(const RunConfig& run, const ModelConfig& model) { return std::make_unique<ReplayData>(run, model); }

}  // namespace megaslide
