ms_tool(eval-vbench CUDA DEPS ms_eval)
