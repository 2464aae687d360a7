ms_tool(shard-weights DEPS ms_model ms_io ms_config)
