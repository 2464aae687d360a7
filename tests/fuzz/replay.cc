// Without libFuzzer: each file of the folders named once through the harness. Fails where there is none.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/atomic_file.h"
#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(argv[i], none)) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    std::printf("%s\n", file.c_str());
    std::fflush(stdout);  // the last line names the file that ends it
    const std::string bytes = megaslide::read_file(file);
    // A copy of exactly this size: the sanitizers see a read beyond it.
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
  }
  std::printf("%zu inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
