ms_tool(finetune DEPS ms_plan ms_train)
target_sources(finetune PRIVATE finetune_modes.cc)
