#include "motion_report.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace megaslide {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string cell(const Interval& i, int digits, bool sign = false) {
  if (i.n == 0) return "–";
  const std::string mean = sign ? fmt::format("{:+.{}f}", i.mean, digits) : fmt::format("{:.{}f}", i.mean, digits);
  return std::isnan(i.half) ? mean : fmt::format("{} ± {:.{}f}", mean, i.half, digits);
}

std::string plain(double x, int digits) { return std::isnan(x) ? "–" : fmt::format("{:.{}f}", x, digits); }

double all_loss(const MotionRun& r) { return r.losses.all.mean(); }
auto kind_loss(TokenKind kind) {
  return [kind](const MotionRun& r) { return r.losses.kinds[static_cast<size_t>(kind)].mean(); };
}

// Differences between runs of equal seed.
template <class Value>
Interval difference(const VariantRuns& variant, const VariantRuns* base, const Value& value) {
  std::vector<double> differences;
  if (base != nullptr && base->variant != variant.variant)
    for (const MotionRun* run : variant.runs)
      for (const MotionRun* other : base->runs)
        if (run->seed == other->seed) differences.push_back(value(*run) - value(*other));
  return interval_of(differences);
}

std::string diverged(const VariantRuns& v) {
  std::string seeds;
  for (const MotionRun* run : v.runs)
    if (run->diverged()) seeds += fmt::format("{}{}", seeds.empty() ? "seed " : ", ", run->seed);
  return seeds.empty() ? "no" : seeds;
}

const VariantRuns* find(const std::vector<VariantRuns>& all, const std::string& name) {
  for (const VariantRuns& v : all)
    if (v.variant == name) return &v;
  return nullptr;
}

std::string loss_table(const std::vector<VariantRuns>& variants) {
  std::string text =
      "| variant | runs | attention, kflop a token | s a step | all tokens | background | slow | fast | diverged |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (const VariantRuns& v : variants)
    text += fmt::format("| {} | {} | {:.1f} | {} | {} | {} | {} | {} | {} |\n", v.variant, v.runs.size(), v.runs.front()->attention_flops / 1000,
                        plain(v.interval([](const MotionRun& r) { return r.step_seconds; }).mean, 3), cell(v.interval(all_loss), 3),
                        cell(v.interval(kind_loss(TokenKind::kBackground)), 3), cell(v.interval(kind_loss(TokenKind::kSlow)), 3),
                        cell(v.interval(kind_loss(TokenKind::kFast)), 3), diverged(v));
  return text;
}

std::string difference_table(const std::vector<VariantRuns>& variants) {
  std::string text =
      "| variant | all, to zero-377 | slow | fast | all, to zero-333 | slow | fast |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const VariantRuns& v : variants) {
    text += "| " + v.variant;
    for (const char* base : {"zero-377", "zero-333"}) {
      const VariantRuns* b = find(variants, base);
      text += " | " + cell(difference(v, b, all_loss), 3, true);
      for (const TokenKind kind : {TokenKind::kSlow, TokenKind::kFast}) text += " | " + cell(difference(v, b, kind_loss(kind)), 3, true);
    }
    text += " |\n";
  }
  return text;
}

std::string prediction_table(const std::vector<VariantRuns>& variants, const MotionTruthScores& t) {
  std::string text =
      "| variant | still cosine | tracked cosine | sprites found | off the true place, px | off a smooth path, px |\n"
      "|---|---|---|---|---|---|\n";
  text += fmt::format("| the clips themselves | {} | {} | {} | {} | {} |\n", plain(t.still, 3), plain(t.tracked, 3), plain(t.all_tracks.found.mean(), 2),
                      plain(t.all_tracks.error.mean(), 2), plain(t.all_tracks.residual.mean(), 2));
  for (const VariantRuns& v : variants)
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", v.variant, cell(v.interval([](const MotionRun& r) { return r.predicted_still; }), 3),
                        cell(v.interval([](const MotionRun& r) { return r.predicted_tracked; }), 3),
                        cell(v.interval([](const MotionRun& r) { return r.predicted_tracks.found.mean(); }), 2),
                        cell(v.interval([](const MotionRun& r) { return r.predicted_tracks.error.mean(); }), 2),
                        cell(v.interval([](const MotionRun& r) { return r.predicted_tracks.residual.mean(); }), 2));
  return text;
}

std::string sample_table(const std::vector<VariantRuns>& variants, const MotionTruthScores& t) {
  std::string text =
      "| variant | still cosine | sprites found | off a smooth path, px | step, px |\n"
      "|---|---|---|---|---|\n";
  text += fmt::format("| the clips themselves | {} | {} | {} | {} |\n", plain(t.sample_still, 3), plain(t.tracks.found.mean(), 2), plain(t.tracks.residual.mean(), 2), plain(t.tracks.step.mean(), 2));
  for (const VariantRuns& v : variants)
    text += fmt::format("| {} | {} | {} | {} | {} |\n", v.variant, cell(v.interval([](const MotionRun& r) { return r.sample_still.value_or(kNan); }), 3),
                        cell(v.interval([](const MotionRun& r) { return r.samples.found.mean(); }), 2),
                        cell(v.interval([](const MotionRun& r) { return r.samples.residual.mean(); }), 2),
                        cell(v.interval([](const MotionRun& r) { return r.samples.step.mean(); }), 2));
  return text;
}

}  // namespace

std::vector<VariantRuns> by_variant(const MotionExperiment& e) {
  std::vector<VariantRuns> all;
  for (const MotionRun& run : e.runs) {
    if (all.empty() || all.back().variant != run.variant) all.push_back({run.variant, {}});
    all.back().runs.push_back(&run);
  }
  return all;
}

std::string motion_report(const MotionExperiment& e) {
  const std::vector<VariantRuns> variants = by_variant(e);
  std::string text = fmt::format("# What attention gains from following motion\n\n{} runs of {} steps; {} tokens a clip. Means over seeds, ± half of Student's 95% interval.\n\n", e.runs.size(), e.steps, e.tokens);
  text += fmt::format("## Loss of {} held-out clips\n\nMean squared error of the velocity at noise levels 0.1, 0.3, 0.5, 0.7 and 0.9; lower is better.\n\n{}\n", e.truth.clips, loss_table(variants));
  text += fmt::format("Differences between runs of equal seed; below 0 is better than the base.\n\n{}\n", difference_table(variants));
  text += fmt::format("## Motion in predictions of held-out clips\n\nCosines at noise levels 0.5, 0.7 and 0.9, sprites at 0.7. The clips themselves: what the truth scores; its places are {} pixels off by the tracker alone.\n\n{}\n", plain(e.truth.all_tracks.error.mean(), 2), prediction_table(variants, e.truth));
  text += fmt::format("## Motion in samples\n\nOf {} captions, from noise.\n\n{}", e.truth.prompts, sample_table(variants, e.truth));
  return text;
}

}  // namespace megaslide
