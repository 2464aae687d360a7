ms_tool(finetune CUDA DEPS ms_plan ms_train)
target_sources(finetune PRIVATE finetune_modes.cc)
