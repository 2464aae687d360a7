ms_tool(encode-clips CUDA DEPS ms_data)
