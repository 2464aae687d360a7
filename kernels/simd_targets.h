// Instruction sets that elementwise kernels are compiled for: AVX-512, AVX2 and the baseline. The other x86 sets that
// Highway knows (the bits below AVX3's are those beyond it) bring these memory-bound loops nothing but compile time.
#pragma once
#define HWY_DISABLED_TARGETS ((HWY_AVX3 - 1) | HWY_SSSE3 | HWY_SSE4)
