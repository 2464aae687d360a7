// A plan as JSON and as text.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "plan/planner.h"

namespace megaslide {
namespace {

void line(std::string& out, const std::string& label, int64_t bytes) {
  if (bytes) out += fmt::format("  {:<26} {:>16} B  {:>10}\n", label, bytes, format_bytes(bytes));
}

std::string share(double x) { return x > 0 ? fmt::format("{:.1f}%", 100 * x) : "not known"; }

}  // namespace

std::string to_json(const Plan& p) {
  const auto& h = p.host;
  const auto& d = p.device;
  nlohmann::ordered_json j{
      {"parameters", p.parameters},
      {"tokens", p.tokens},
      {"host",
       {{"weights", h.weights}, {"masters", h.masters}, {"moments", h.moments}, {"gradients", h.gradients}, {"activations", h.activations},
        {"pinned", h.pinned}, {"other", h.other}, {"device_arena", h.device_arena}, {"total", h.total()}}},
      {"device",
       {{"weights", d.weights}, {"activations", d.activations}, {"gradients", d.gradients}, {"workspace", d.workspace}, {"other", d.other}, {"peak", d.peak}}},
      {"disk", {{"checkpoint", p.disk.checkpoint}, {"tier", p.disk.tier}}},
      {"step_seconds", p.step_seconds},
      {"mfu", p.mfu},
      {"hfu", p.hfu},
      {"bound_by", p.bound_by},
      {"waits", {{"upload", p.waits.upload}, {"download", p.waits.download}, {"optimizer", p.waits.optimizer}, {"disk", p.waits.disk}, {"data", p.waits.data}}},
      {"fits", p.fits()},
      {"misfits", p.misfits},
      {"remedies", p.remedies}};
  return j.dump();
}

std::string to_text(const Plan& p, const PlanRequest& r) {
  std::string out = fmt::format("model    {}: {} parameters, {} layers of width {}, attention {}\n", r.model.name, p.parameters, r.model.layers,
                                r.model.dim, attention_kind_name(r.model.attention.kind));
  out += fmt::format("machine  {}{}\n", r.machine.name, r.machine.measured ? " (measured)" : " (from data sheets or estimates)");
  out += fmt::format("step     {} tokens in {} microbatches\n\n", p.tokens, r.max_microbatches);
  out += "host memory\n";
  line(out, "weights", p.host.weights);
  line(out, "masters", p.host.masters);
  line(out, "moments", p.host.moments);
  line(out, "gradients", p.host.gradients);
  line(out, "activations", p.host.activations);
  line(out, "staging", p.host.pinned);
  line(out, "program, libraries, data", p.host.other);
  line(out, "device arena", p.host.device_arena);
  line(out, "total", p.host.total());
  out += "device memory\n";
  line(out, "weights", p.device.weights);
  line(out, "activations", p.device.activations);
  line(out, "gradients", p.device.gradients);
  line(out, "workspace", p.device.workspace);
  line(out, "other", p.device.other);
  line(out, "peak", p.device.peak);
  out += "disk\n";
  line(out, "a checkpoint", p.disk.checkpoint);
  line(out, "layers' state", p.disk.tier);
  out += fmt::format("\nstep time {:.4g} s, {:.0f} tokens/s, bound by {}; MFU {}, HFU {}\n", p.step_seconds,
                     p.step_seconds > 0 ? static_cast<double>(p.tokens) / p.step_seconds : 0, p.bound_by, share(p.mfu), share(p.hfu));
  out += fmt::format("the device waits for: upload {:.3g} s, download {:.3g} s, optimizer {:.3g} s, disk {:.3g} s\n", p.waits.upload, p.waits.download,
                     p.waits.optimizer, p.waits.disk);
  if (p.fits()) return out + "\nfits\n";
  return out + "\n" + misfit_text(p) + "\n";
}

std::string misfit_text(const Plan& p) {
  std::string out = "does not fit:";
  for (const auto& m : p.misfits) out += "\n  " + m;
  if (p.remedies.empty()) return out + "\nno setting that was tried makes it fit, nor do smaller clips alone: plan-memory --fit tries both together";
  out += "\nit fits with any one of:";
  for (const auto& r : p.remedies) out += "\n  " + r;
  return out;
}

}  // namespace megaslide
