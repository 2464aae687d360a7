// What the CUDA entries of attention.h take: heads of up to 256 channels. bf16 heads of up to 128 channels run on tensor
// cores, where P and dS, and dout backward, are rounded to bf16 as operands.
#pragma once
#include "kernels/attention/attention.h"
