ms_tool(shard-weights DEPS ms_model ms_io ms_config)
target_sources(shard-weights PRIVATE shard_weights_modes.cc)
