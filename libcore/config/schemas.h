// The tables of keys.
#pragma once
#include "config/machine_config.h"
#include "config/run_config.h"
#include "config/schema.h"

namespace megaslide {

Schema run_schema(RunConfig& c);
Schema machine_schema(MachineConfig& c);
Schema model_schema(ModelConfig& c);

const Schema::Words<AttentionKind>& attention_words();
const Schema::Words<DsaMode>& dsa_mode_words();
const Schema::Words<DsaOffsets>& dsa_offsets_words();

}  // namespace megaslide
