ms_tool(plan-memory DEPS ms_plan)
target_sources(plan-memory PRIVATE plan_memory_modes.cc)
