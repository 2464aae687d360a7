ms_tool(bench-dsa DEPS ms_attention_check)
