// What a disk gives: plain sequential O_DIRECT transfers of 1 MiB, one after another, and a BlockFile's in its two ways, with
// their checksums; in turn, median of the rounds. Also the checksum alone.
//   bench_block_file DIRECTORY [--bytes 2000000000] [--rounds 3]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "io/block_file.h"

namespace megaslide {
namespace {

double seconds_of(auto&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Rates {
  std::string name;
  std::vector<double> write, read;  // bytes/s
};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void plain(const std::string& directory, std::byte* memory, int64_t bytes, Rates& r) {
  const std::string path = directory + "/.bench-block-file";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
  if (fd < 0) throw system_error("open", path, errno);
  unlink(path.c_str());
  if (fallocate(fd, 0, 0, bytes) != 0) throw system_error("reserve", path, errno);
  const auto each = [&](auto&& transfer) {
    for (int64_t at = 0; at < bytes; at += kBlockBytes)
      if (transfer(fd, memory + at, static_cast<size_t>(kBlockBytes), at) != kBlockBytes) throw system_error("transfer", path, errno);
  };
  // The first writing of space that was only reserved is slower; a run pays it once.
  each(pwrite);
  r.write.push_back(static_cast<double>(bytes) / seconds_of([&] { each(pwrite); }));
  r.read.push_back(static_cast<double>(bytes) / seconds_of([&] { each(pread); }));
  close(fd);
}

void block_file(const std::string& directory, std::byte* memory, int64_t bytes, bool uring, Rates& r) {
  BlockFile f(directory, {{"bench", bytes}}, {.uring = uring});
  const std::span<std::byte> area(memory, static_cast<size_t>(bytes));
  f.register_memory({&area, 1});
  r.name = f.method();
  const BlockFile::Transfer t{0, memory};
  f.write({&t, 1});
  r.write.push_back(static_cast<double>(bytes) / seconds_of([&] { f.write({&t, 1}); }));
  r.read.push_back(static_cast<double>(bytes) / seconds_of([&] { f.read({&t, 1}); }));
}

int run(int argc, char** argv) {
  std::string directory = ".";
  int64_t bytes = 2'000'000'000;
  int rounds = 3;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--bytes" && i + 1 < argc) bytes = std::atoll(argv[++i]);
    else if (a == "--rounds" && i + 1 < argc) rounds = std::atoi(argv[++i]);
    else directory = a;
  }
  bytes = std::max<int64_t>(1, bytes / kBlockBytes) * kBlockBytes;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kBlockAlign, static_cast<size_t>(bytes)));
  for (int64_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(i * 2654435761 >> 11);
  std::vector<Rates> all{{"plain O_DIRECT", {}, {}}, {}, {}};
  std::vector<double> sums;
  for (int round = 0; round < rounds; ++round) {
    plain(directory, memory, bytes, all[0]);
    block_file(directory, memory, bytes, true, all[1]);
    block_file(directory, memory, bytes, false, all[2]);
    uint64_t sum = 0;
    const double s = seconds_of([&] {
      for (int64_t at = 0; at < bytes; at += kBlockBytes) sum ^= checksum64({memory + at, static_cast<size_t>(kBlockBytes)});
    });
    sums.push_back(static_cast<double>(bytes) / s + static_cast<double>(sum & 1));
  }
  std::printf("%-44s %12s %12s\n", "bytes/s", "write", "read");
  for (const Rates& r : all) std::printf("%-44s %12.4g %12.4g\n", r.name.c_str(), median(r.write), median(r.read));
  std::printf("%-44s %12.4g\n", "checksum alone, one thread", median(sums));
  std::free(memory);
  return 0;
}

}  // namespace
}  // namespace megaslide

int main(int argc, char** argv) {
  try {
    return megaslide::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_block_file: %s\n", e.what());
    return 1;
  }
}
