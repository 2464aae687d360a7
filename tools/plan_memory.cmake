ms_tool(plan-memory DEPS ms_plan)
