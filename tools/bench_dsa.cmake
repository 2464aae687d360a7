ms_tool(bench-dsa DEPS ms_attention_check_emulated)
target_sources(bench-dsa PRIVATE bench_dsa_modes.cc)
