ms_tool(encode-clips DEPS ms_data)
