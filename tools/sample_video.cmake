ms_tool(sample-video CUDA DEPS ms_diffusion)
