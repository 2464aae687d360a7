// Optimizer updates of every pair of codecs, with one thread and with all, each in turn with a triad over fp32 arrays.
// `of_triad` is the median of the updates' bytes/s over those of the triads beside them.
//   bench_adamw [--parameters 64000000] [--rounds 7] [--only split/int8]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/adamw/adamw.h"

namespace megaslide {
namespace {

struct Options {
  int64_t parameters = 64'000'000;
  int rounds = 7;
  std::string only;
};

// Zeros, in huge pages where there are some.
class Pages {
 public:
  Pages(ThreadPool& pool, int64_t bytes)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(1 << 21, static_cast<size_t>(bytes + (1 << 21) - 1) >> 21 << 21))) {
    pool.parallel_for(bytes, 1 << 21, [&](int64_t begin, int64_t end) {
      std::memset(data_.get() + begin, 0, static_cast<size_t>(end - begin));
    });
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

// Memory for any codecs of n parameters: arrays of fp32 that the others use a part of.
struct Memory {
  Memory(ThreadPool& pool, int64_t n)
      : p(pool, 4 * n), w(pool, 2 * n), r(pool, 2 * n), m(pool, 4 * n), v(pool, 4 * n), g(pool, 2 * n),
        a(pool, 4 * n), b(pool, 4 * n), m_scale(pool, 4 * moment_blocks(n)), v_scale(pool, 4 * moment_blocks(n)) {
    pool.parallel_for(n, 1 << 20, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        g.as<bf16>()[i] = to_bf16(static_cast<float>((i * 2654435761) % 2001 - 1000) * 1e-6F);
    });
  }
  AdamWState state(MasterCodec masters, MomentCodec moments) const {
    return {.masters = masters,
            .moments = moments,
            .p = p.as<float>(),
            .w = w.as<bf16>(),
            .r = r.as<int16_t>(),
            .m = m.as<void>(),
            .v = v.as<void>(),
            .m_scale = m_scale.as<float>(),
            .v_scale = v_scale.as<float>()};
  }
  Pages p, w, r, m, v, g, a, b, m_scale, v_scale;  // a and b: the triad's
};

// a = a·s + b: 12 bytes an element.
__attribute__((target_clones("arch=skylake-avx512", "avx2,fma", "default"), optimize("O3"))) void triad_piece(
    float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = a[i] * 0.999F + b[i];
}

double seconds_of(FunctionRef<void()> body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

struct Pair {
  const char* name;
  MasterCodec masters;
  MomentCodec moments;
};
constexpr Pair kPairs[] = {
    {"fp32/fp32", MasterCodec::kFp32, MomentCodec::kFp32},
    {"split/fp32", MasterCodec::kSplit, MomentCodec::kFp32},
    {"bf16-sr/fp32", MasterCodec::kBf16Sr, MomentCodec::kFp32},
    {"fp32/bf16", MasterCodec::kFp32, MomentCodec::kBf16},
    {"split/bf16", MasterCodec::kSplit, MomentCodec::kBf16},
    {"bf16-sr/bf16", MasterCodec::kBf16Sr, MomentCodec::kBf16},
    {"fp32/int8", MasterCodec::kFp32, MomentCodec::kInt8},
    {"split/int8", MasterCodec::kSplit, MomentCodec::kInt8},
    {"bf16-sr/int8", MasterCodec::kBf16Sr, MomentCodec::kInt8},
};

void run(const Options& o, int threads) {
  ThreadPool pool(threads);
  const int64_t n = o.parameters;
  const Memory memory(pool, n);
  AdamWStep step;
  const auto triad = [&] {  // bytes/s
    const double seconds = seconds_of([&] {
      pool.parallel_for(n, 65536, [&](int64_t begin, int64_t end) {
        triad_piece(memory.a.as<float>() + begin, memory.b.as<float>() + begin, end - begin);
      });
    });
    return 12 * static_cast<double>(n) / seconds;
  };
  triad();
  for (const Pair& pair : kPairs) {
    if (!o.only.empty() && o.only != pair.name) continue;
    for (const Pages* x : {&memory.p, &memory.m, &memory.v})
      pool.parallel_for(4 * n, 1 << 21, [&](int64_t begin, int64_t end) {
        std::memset(x->as<std::byte>() + begin, 0, static_cast<size_t>(end - begin));
      });
    const AdamWState state = memory.state(pair.masters, pair.moments);
    const double bytes = update_bytes_each(pair.masters, pair.moments, 2) * static_cast<double>(n);
    std::vector<double> rates, triads, shares;
    for (int round = 0; round <= o.rounds; ++round) {
      ++step.step;
      const double seconds =
          seconds_of([&] { adamw_update(pool, state, memory.g.as<bf16>(), DType::kBF16, n, step); });
      const double bandwidth = triad();
      if (round == 0) continue;  // from zeros
      rates.push_back(static_cast<double>(n) / seconds);
      triads.push_back(bandwidth);
      shares.push_back(bytes / seconds / bandwidth);
    }
    const double rate = median(rates);
    std::printf("{\"codecs\": \"%s\", \"threads\": %d, \"gparameters_per_s\": %.3f, \"best\": %.3f, "
                "\"bytes_each\": %.2f, \"gbytes_per_s\": %.1f, \"triad_gbytes_per_s\": %.1f, \"of_triad\": %.2f}\n",
                pair.name, threads, rate * 1e-9, *std::max_element(rates.begin(), rates.end()) * 1e-9,
                bytes / static_cast<double>(n), rate * bytes / static_cast<double>(n) * 1e-9, median(triads) * 1e-9,
                median(shares));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace megaslide

int main(int argc, char** argv) {
  megaslide::Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--parameters") o.parameters = std::atoll(argv[i + 1]);
    if (flag == "--rounds") o.rounds = std::atoi(argv[i + 1]);
    if (flag == "--only") o.only = argv[i + 1];
  }
  megaslide::run(o, 1);
  if (megaslide::available_threads() > 1) megaslide::run(o, megaslide::available_threads());
}
