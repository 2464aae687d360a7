ms_tool(plan-memory CUDA DEPS ms_plan)
target_sources(plan-memory PRIVATE plan_memory_modes.cc)
