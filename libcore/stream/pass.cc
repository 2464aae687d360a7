#include "stream/pass.h"

#include "kernels/memory/memory.h"

namespace megaslide {

Pass::Pass(const PassContext& context, bool clips) : x_(context) {
  const PipelineOptions& o = x_.options;
  // Only the first microbatch's are used by predict() and evaluate().
  MicroBufferNeeds needs{o.shapes, o.predict_shapes, o.compute_dtype, o.training, o.input_gradients, clips};
  for (int a = 0; a < o.max_microbatches; ++a, needs.passed = {})
    micro_.push_back(make_micro_buffers(x_.network, needs, [&](int64_t bytes, std::string_view name) {
      return x_.take(bytes, name, MemoryCategory::kActivations);
    }));
  loss_ = static_cast<double*>(x_.take(8 * o.max_microbatches, "loss", MemoryCategory::kOther));
}

LayerCall Pass::call(const WeightSlot& slot, const BatchShape& shape) const {
  return {x_.device.compute(), x_.workspace, shape, x_.options.compute_dtype, slot.raw, slot.packed};
}

void Pass::upload_conditioning(Batches batches) {
  for (size_t a = 0; a < batches.size(); ++a) {
    const MicroBatch& b = batches[a];
    const MicroBuffers& m = micro_[a];
    const auto up = [&](void* dst, const void* src, int64_t n) {
      x_.device.copy(x_.device.upload(), dst, src, n * 4, CopyKind::kUpload, "upload inputs");
    };
    up(m.timesteps, b.timesteps, b.shape.timesteps());
    up(m.text, b.text, b.shape.batch * b.shape.context_rows * x_.network.text_width);
    if (b.target && b.loss_weights) up(m.loss_weights, b.loss_weights, b.shape.batch * b.shape.frames);
  }
}

void Pass::condition(Batches batches) {
  for (size_t a = 0; a < batches.size(); ++a) {
    const MicroBuffers& m = micro_[a];
    x_.network.embedding->conditioning_forward(call(x_.weights.embedding(), batches[a].shape), m.timesteps, m.text, m.context, m.time,
                                               m.modulation, m.embedding_saved);
  }
}

void Pass::clear_conditioning_gradients(const MicroBatch& b, const MicroBuffers& m) {
  Stream& c = x_.device.compute();
  const BatchShape& s = b.shape;
  const int64_t d = x_.network.width;
  fill_zero(c, m.dcontext, s.batch * s.context_rows * d * 4);
  fill_zero(c, m.dtime, s.timesteps() * d * 4);
  fill_zero(c, m.dmodulation, s.timesteps() * 6 * d * 4);
}

void Pass::condition_backward(Batches batches) {
  for (size_t a = 0; a < batches.size(); ++a) {
    const MicroBuffers& m = micro_[a];
    x_.network.embedding->conditioning_backward(call(x_.weights.embedding(), batches[a].shape), m.text, m.embedding_saved, m.dcontext,
                                                m.dtime, m.dmodulation, m.dtext, x_.gradient);
  }
}

Event Pass::download_losses(double* losses, int64_t n) {
  Stream& d = x_.device.download();
  x_.device.wait(d, x_.device.record(x_.device.compute()));
  x_.device.copy(d, losses, loss_, 8 * n, CopyKind::kDownload, "download loss");
  return results_sent_ = x_.device.record(d);
}

}  // namespace megaslide
