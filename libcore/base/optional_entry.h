// Entries that a program may be linked without.
#pragma once

// Before a declaration: where nothing defines it, its address is null. So one build of everything else serves programs for
// the processor alone, for a GPU, and for the emulator.
#define MS_OPTIONAL [[gnu::weak]]
