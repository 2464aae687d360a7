ms_tool(sample-video DEPS ms_diffusion)
