ms_tool(eval-vbench DEPS ms_eval)
