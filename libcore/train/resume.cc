#include "train/resume.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/log.h"
#include "config/nearest.h"

namespace megaslide {
namespace {

bool contains(const std::vector<std::string>& keys, const std::string& key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

// Keys that the version which wrote the checkpoint did not have meant what is now their default.
std::vector<std::string> with_later_keys(std::vector<std::string> lines) {
  const auto key_of = [](const std::string& line) { return line.substr(0, line.find('=')); };
  for (const std::string& line : canonical_lines(RunConfig{}))
    if (std::none_of(lines.begin(), lines.end(), [&](const std::string& l) { return key_of(l) == key_of(line); })) lines.push_back(line);
  return lines;
}

void compare(const std::string& path, const RunState& found, const RunState& now, const std::vector<std::string>& allowed) {
  auto differences = differing_keys(with_later_keys(found.config), now.config);
  if (const std::string data = data_difference(found.data, now.data); !data.empty())
    differences.push_back(fmt::format("data.cache: its content has changed: {}", data));
  std::string text;
  for (const auto& line : differences) {
    const std::string key = line.substr(0, line.find(':'));
    if (!contains(allowed, key)) text += "\n  " + line;
    else log_info("allowed change: {}{}", line, key == "train.max_train_steps" ? "; the learning rate's schedule is stretched to the new length" : "");
  }
  if (!text.empty())
    throw usage_error(fmt::format("{}: made with another configuration:{}", path, text),
                      "restore these keys, allow each with --allow-config-change KEY, or choose another output.output_dir");
}

ResumePoint open_point(const std::string& path, const RunState& now, const std::vector<std::string>& allowed, ThreadPool& pool) {
  const ModelDirectory directory = open_checkpoint(path);
  // Before its content is compared: a damaged byte of it must not pass for another configuration.
  if (!directory.manifest().digest_ok) throw damaged_checkpoint(path, {ModelDirectory::Difference{kManifestName, "content differs from its own digest"}});
  RunState found = parse_run_state(directory.manifest().state, path);
  compare(path, found, now, allowed);
  return {open_whole_checkpoint(path, pool), std::move(found)};
}

std::optional<ResumePoint> find_latest(const RunState& now, const CheckpointFolder& folder, const std::vector<std::string>& allowed, ThreadPool& pool) {
  std::optional<Error> damage;
  for (const std::string& path : folder.candidates()) {
    try {
      ResumePoint point = open_point(path, now, allowed, pool);
      if (damage) log_warning("going on from {}, the newest checkpoint that is whole", path);
      return point;
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kUsage) throw;
      log_warning("{}", e.message());
      damage = e;
    }
  }
  if (damage) throw Error(damage->message(), "no checkpoint of this run is whole: start again in another output.output_dir");
  return std::nullopt;
}

// Values of one parameter that are not finite.
struct NotFinite {
  int64_t nan = 0, infinite = 0, first = -1;
};

NotFinite count_not_finite(const HostStore& store, int module, int64_t begin, int64_t n, ThreadPool& pool) {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<float> x(static_cast<size_t>(std::min(n, kPiece)));
  NotFinite c;
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    store.read_master(pool, module, begin + at, count, x.data());
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x[static_cast<size_t>(i)]) & 0x7FFFFFFF;
      if (magnitude < 0x7F800000) continue;
      ++(magnitude > 0x7F800000 ? c.nan : c.infinite);
      if (c.first < 0) c.first = at + i;
    }
  }
  return c;
}

}  // namespace

void check_allowed_changes(const std::vector<std::string>& allowed) {
  const auto keys = run_config_keys();
  for (const std::string& key : allowed) {
    if (contains(keys, key)) continue;
    const std::string near = nearest_name(key, keys);
    throw usage_error(fmt::format("--allow-config-change {}: no such key{}", key, near.empty() ? "" : fmt::format("; did you mean {}?", near)),
                      "man megaslide-config lists the keys");
  }
}

std::optional<ResumePoint> find_resume_point(const RunConfig& run, const RunState& now, const CheckpointFolder& folder,
                                             const std::vector<std::string>& allowed, ThreadPool& pool) {
  const std::string& resume = run.output.resume_from_checkpoint;
  if (resume == "latest") return find_latest(now, folder, allowed, pool);
  if (resume != "none") return open_point(resume, now, allowed, pool);
  if (const auto found = folder.latest())
    throw usage_error(fmt::format("{}: holds checkpoints of another run, and resuming was declined", *found),
                      "resume with --resume latest, or choose another output.output_dir");
  return std::nullopt;
}

void require_finite_weights(const HostStore& store, const std::string& source, ThreadPool& pool) {
  constexpr int kMostNames = 10;
  std::string text;
  int found = 0;
  for (int m = 0; m < store.modules(); ++m)
    store.read_module(m, [&](const ModuleState& s) {
      for (size_t i = 0; i < s.module->params().size(); ++i) {
        const ParamSpec& spec = s.module->params()[i];
        const NotFinite c = count_not_finite(store, m, s.module->layout().offset[i], element_count(spec.shape), pool);
        if (c.first < 0 || ++found > kMostNames) continue;
        text += fmt::format("\n  {}{}: {} NaN, {} infinite, the first at index {}", s.prefix, spec.name, c.nan, c.infinite, c.first);
      }
    });
  if (!found) return;
  if (found > kMostNames) text += fmt::format("\n  and {} more", found - kMostNames);
  throw Error(fmt::format("{}: the weights hold values that are not finite:{}", source, text),
              "get the checkpoint again, and import it with shard-weights, which checks it");
}

}  // namespace megaslide
