#!/usr/bin/env bash
# The layering check must find what it is there for: one small wrong tree a rule.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../support/wrong_trees.sh" "$here/check.sh"

expect good libcore/base/a.cc '#include "base/error.h"' '#include <vector>'
expect bad libcore/base/a.cc '#include "tensor/tensor.h"'
expect bad libcore/tensor/a.h '#include "io/safetensors.h"'
expect good kernels/norm/norm.h '#include "kernels/kernel.h"' '#include "tensor/dtype.h"'
expect bad kernels/norm/norm.h '#include "tensor/tensor.h"'
expect bad kernels/norm/norm.cc '#include "model/layer.h"'
expect good libcore/stream/a.h '#include "model/layer.h"'
expect bad libcore/stream/a.h '#include "model/wan.h"'
expect bad libcore/model/a.cc '#include "stream/pipeline.h"'
expect bad libcore/config/a.cc '#include "libcore/io/video.h"'
expect bad libcore/train/a.cc '#include "tools/common/run_tool.h"'
expect bad libcore/attic/a.cc '#include "base/error.h"'
expect good tools/finetune.cc '#include "train/trainer.h"' '#include <CLI/CLI.hpp>'
expect bad libcore/train/a.cc '#include <CLI/CLI.hpp>'
expect bad libcore/io/a.cc '#include <yaml-cpp/yaml.h>'
expect bad libcore/data/a.cc 'extern "C" {' '#include <libavformat/avformat.h>' '}'
expect good libcore/io/a.cc '#include <libswscale/swscale.h>'
expect bad libcore/model/a.cc '#include <cuda_runtime.h>'
expect good kernels/norm/norm.cu '#include <cuda_bf16.h>'
expect bad libcore/model/a.cc '#include <oneapi/dnnl/dnnl.hpp>'
expect bad kernels/norm/norm.cc '#  include <oneapi/dnnl/dnnl.hpp>'
expect bad libcore/io/a.cc '#include "../base/error.h"'
expect bad libcore/io/a.cc 'void f() { std::cout << 1; }'
expect bad libcore/io/a.cc 'void f() { std::printf("x"); }'
expect good libcore/io/a.cc '// printf( in a comment' 'auto s = "exit(1)"; auto n = std::snprintf(b, 4, "x");'
expect bad libcore/io/a.cc 'void f() { std::exit(1); }'
expect bad libcore/io/a.cc 'auto* p = std::getenv("HOME");'
expect bad tools/finetune.cc 'int main() {' $(seq 80)
expect good tools/finetune_modes.cc $(seq 90)

end_of_trees "every rule finds its violation"
