// Tensors of more than 2³¹ elements: the last block of a huge grid against the same corner of a small one. Memory is
// reserved, not used: only the corner is ever touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>

#include "kernels/dsa/dsa_gather.h"
#include "tests/attention/random_case.h"

namespace megaslide {
namespace {

template <class T>
class Sparse {
 public:
  explicit Sparse(int64_t n) : bytes_(static_cast<size_t>(n) * sizeof(T)) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Sparse() {
    if (*this) ::munmap(memory_, bytes_);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  explicit operator bool() const { return memory_ != MAP_FAILED; }
  T* data() { return static_cast<T*>(memory_); }

 private:
  size_t bytes_;
  void* memory_;
};

// Everything that one call of the DSA kernel touches.
struct Tensors {
  explicit Tensors(const DsaShape& s)
      : n(s.tokens() * s.heads * s.head_dim), q(n), k(n), v(n), out(n), dout(n), dq(n), dk(n), dv(n),
        lse(s.tokens() * s.heads), offsets(s.tokens() * dsa_offset_count(s)), doffsets(s.tokens() * dsa_offset_count(s)) {}
  bool mapped() const { return q && k && v && out && dout && dq && dk && dv && lse && offsets && doffsets; }
  int64_t n;
  Sparse<bf16> q, k, v;
  Sparse<float> out, dout, dq, dk, dv, lse, offsets, doffsets;
};

// The last frame's last 8×8 tokens of both.
template <class F>
void each_corner_token(const DsaShape& a, const DsaShape& b, F body) {
  for (int64_t h = 1; h <= 8; ++h)
    for (int64_t w = 1; w <= 8; ++w)
      body(((a.frames - 1) * a.height + a.height - h) * a.width + a.width - w,
           ((b.frames - 1) * b.height + b.height - h) * b.width + b.width - w);
}

void run_last_block(const DsaShape& s, Tensors& x) {
  const DsaBlocking blocking(s);
  const int64_t block = blocking.blocks - 1;
  for (int64_t g = 0; g < s.groups; ++g)
    dsa_forward_piece({x.out.data(), x.lse.data(), x.q.data(), x.k.data(), x.v.data(), x.offsets.data(), s, DType::kBF16, blocking}, 0, block, g);
  std::vector<std::byte> memory(static_cast<size_t>(DsaBand::bytes_a_block(s)) + 64);
  DsaBand band(s);
  band.memory = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  band.first = block;
  const DsaBackwardArgs args{x.dq.data(), x.dk.data(), x.dv.data(), x.doffsets.data(), x.q.data(), x.k.data(), x.v.data(),
                             x.offsets.data(), x.out.data(), x.lse.data(), x.dout.data(), s, DType::kBF16, blocking};
  for (int64_t g = 0; g < s.groups; ++g) dsa_place_piece(args, band, block, g);
  for (int64_t h = 0; h < s.heads; ++h) dsa_backward_piece(args, band, 0, h, block, block + 1);
  for (int64_t g = 0; g < s.groups; ++g) dsa_reduce_piece(args, band, block, g);
}

TEST(LargeIndex, last_block_of_more_than_2_31_elements) {
  DsaShape large;
  large.frames = 3, large.height = 1024, large.width = 1024, large.heads = 2, large.head_dim = 400, large.groups = 2;
  large.scale = 0.05f;
  for (int64_t& k : large.kernel) k = 3;
  DsaShape small = large;
  small.height = small.width = 16;
  Tensors big(large), little(small);
  ASSERT_GT(big.n, int64_t{1} << 31);
  if (!big.mapped() || !little.mapped()) GTEST_SKIP() << "the system does not reserve that much address space";
  const int64_t row = large.heads * large.head_dim, count = dsa_offset_count(large);
  const auto values = testing_support::bf16_normals(64 * (4 * row + count), 3);
  size_t next = 0;
  each_corner_token(large, small, [&](int64_t a, int64_t b) {
    for (int64_t i = 0; i < row; ++i) {
      big.q.data()[a * row + i] = little.q.data()[b * row + i] = to_bf16(values[next++]);
      big.k.data()[a * row + i] = little.k.data()[b * row + i] = to_bf16(values[next++]);
      big.v.data()[a * row + i] = little.v.data()[b * row + i] = to_bf16(values[next++]);
      big.dout.data()[a * row + i] = little.dout.data()[b * row + i] = values[next++];
    }
    for (int64_t i = 0; i < count; ++i) big.offsets.data()[a * count + i] = little.offsets.data()[b * count + i] = values[next++];
  });
  run_last_block(large, big);
  run_last_block(small, little);
  double seen = 0;
  each_corner_token(large, small, [&](int64_t a, int64_t b) {
    for (int64_t i = 0; i < row; ++i) {
      for (auto p : {&Tensors::out, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
        ASSERT_EQ((big.*p).data()[a * row + i], (little.*p).data()[b * row + i]);
        seen += std::abs(static_cast<double>((big.*p).data()[a * row + i]));
      }
    }
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(big.doffsets.data()[a * count + i], little.doffsets.data()[b * count + i]);
  });
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace megaslide
