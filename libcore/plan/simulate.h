// What the planner's parts share: one run of the schedule on the sim device.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop.h"
#include "plan/planner.h"

namespace megaslide {

// The program's own memory at its start is part of the host's total. It differs by 4 MiB between plan-memory and finetune,
// and by 0.5 MiB from start to start: a host budget that is proposed has to hold for the other program, the next time.
constexpr int64_t kStartSlack = int64_t{8} << 20;

// Plans as it stands, without remedies.
Plan simulate(const PlanRequest& request, StopToken stop);

// The shape whose step is longest: it stands for the run.
BatchShape longest(const PlanRequest& request);

// As a remedy has to fit: also at the next start.
bool surely_fits(const Plan& plan);

// The largest n that fits in [low, high), where `low` fits, or is 0 for nothing, and `high` does not. What fits is taken to
// fit with less too.
int64_t largest_that_fits(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits);

// Makes one of the changes that remedies are made of, by its text ("stream.stash=host"). False where it changes nothing.
bool apply_change(PlanRequest& request, std::string_view text);

// Settings and clip sizes of which each makes the run fit, cheapest in step time first.
std::vector<std::string> find_remedies(const PlanRequest& request, const Plan& plan, StopToken stop);

}  // namespace megaslide
