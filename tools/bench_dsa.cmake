ms_tool(bench-dsa DEPS ms_attention_check)
target_sources(bench-dsa PRIVATE bench_dsa_modes.cc)
