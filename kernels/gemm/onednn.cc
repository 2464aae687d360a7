#include "kernels/gemm/onednn.h"

#include <omp.h>

#if __has_include(<oneapi/dnnl/dnnl.hpp>)
#include <oneapi/dnnl/dnnl.hpp>
#else
#include <dnnl.hpp>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>

#include "base/error.h"
#include "base/library_versions.h"

namespace megaslide::onednn {
namespace {
using dnnl::memory;
using Tag = memory::format_tag;

// Rows for which the packed layout is chosen; products of other heights are told to use that one.
constexpr int64_t kLayoutRows = 160;
constexpr int64_t kPackPieceElements = 65536;

// Never destroyed: pool threads may outlive static objects.
const dnnl::engine& engine() {
  static const auto* e = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *e;
}

// Also makes the thread's OpenMP team one thread: a team of its own inside each of our threads would oversubscribe the
// machine, and would make the split of a product depend on the machine.
dnnl::stream& thread_stream() {
  thread_local std::unique_ptr<dnnl::stream> s;
  if (!s) {
    omp_set_num_threads(1);
    s = std::make_unique<dnnl::stream>(engine());
  }
  return *s;
}

memory::data_type data_type(DType t) {
  MS_CHECK(t == DType::kBF16 || t == DType::kF32, "{}", dtype_name(t));
  return t == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

[[noreturn]] void fail(const char* action, const dnnl::error& e) {
  if (e.status == dnnl_out_of_memory) throw Error(fmt::format("oneDNN: out of memory to {} a matrix product", action));
  throw Error(
      fmt::format("oneDNN cannot {} a matrix product: {} (status {})", action, e.message, static_cast<int>(e.status)),
      "report this with the processor's name and the version of oneDNN");
}

memory::desc matrix(int64_t rows, int64_t columns, memory::data_type type, int64_t row, int64_t column) {
  return {{rows, columns}, type, memory::dims{row, column}};
}

dnnl::matmul::primitive_desc describe(const memory::desc& a, const memory::desc& b, const memory::desc* bias,
                                      const memory::desc& c, bool accumulate) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return bias ? dnnl::matmul::primitive_desc(engine(), a, b, *bias, c, attributes)
              : dnnl::matmul::primitive_desc(engine(), a, b, c, attributes);
#else
  return bias ? dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, *bias, c), attributes, engine())
              : dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine());
#endif
}

// The layout that a product of kLayoutRows rows would choose for B (k,n).
memory::desc packed_layout(int64_t k, int64_t n, memory::data_type type) {
  const memory::desc any({k, n}, type, Tag::any);
  return describe(matrix(kLayoutRows, k, type, k, 1), any, nullptr,
                  matrix(kLayoutRows, n, memory::data_type::f32, n, 1), false)
      .weights_desc();
}

// Blocks of 64 columns, each contiguous over all of k: then a range of columns is a matrix of the same layout.
memory::desc column_blocks(int64_t k, int64_t n, memory::data_type type) {
  return {{k, n}, type, type == memory::data_type::bf16 ? Tag::BA16a64b2a : Tag::BA16a64b};
}

struct PackKey {
  int64_t k, n, b_row, b_column;
  DType dtype;
  friend bool operator==(const PackKey&, const PackKey&) = default;
};

size_t mix(size_t h, int64_t x) { return (h ^ static_cast<size_t>(x)) * 0x9E3779B97F4A7C15U; }
struct Hash {
  size_t operator()(const MatmulShape& s) const {
    size_t h = 1;
    for (const int64_t x : {s.m, s.n, s.k, s.a_row, s.a_column, s.b_row, s.b_column, s.c_row,
                            static_cast<int64_t>(s.dtype), int64_t{s.bias}, int64_t{s.accumulate}})
      h = mix(h, x);
    return h ^ (h >> 29);
  }
  size_t operator()(const PackKey& s) const {
    size_t h = 2;
    for (const int64_t x : {s.k, s.n, s.b_row, s.b_column, static_cast<int64_t>(s.dtype)}) h = mix(h, x);
    return h ^ (h >> 29);
  }
};

// Grows and never shrinks: shapes of a run are few. Never destroyed, as above.
template <class Key, class Value>
const Value* find_or_create(const Key& key) {
  struct Table {
    std::mutex mutex;
    std::unordered_map<Key, std::unique_ptr<Value>, Hash> entries;
  };
  static auto* table = new Table;
  std::lock_guard lock(table->mutex);
  auto& entry = table->entries[key];
  if (!entry) {
    thread_stream();
    try {
      entry = std::make_unique<Value>(key);
    } catch (const dnnl::error& e) {
      fail("compile", e);
    }
  }
  return entry.get();
}

struct FreeScratch {
  void operator()(void* p) const { ::operator delete(p, std::align_val_t{64}); }
};
struct Scratch {
  std::unique_ptr<void, FreeScratch> memory;
  size_t bytes = 0;
};
}  // namespace

bool native_bf16() {
  constexpr auto bits = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool native = [] {
    thread_stream();
    return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
  }();
  return native;
}

std::string instruction_set() {
  using dnnl::cpu_isa;
  // Each value has the bits of the sets that it contains.
  const auto has = [isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa())](cpu_isa set) {
    return (isa & static_cast<unsigned>(set)) == static_cast<unsigned>(set);
  };
  if (has(cpu_isa::avx512_core_amx)) return "avx512_core_amx";
  if (has(cpu_isa::avx512_core_bf16)) return "avx512_core_bf16";
  if (has(cpu_isa::avx512_core_vnni)) return "avx512_core_vnni";
  if (has(cpu_isa::avx512_core)) return "avx512_core";
  if (has(cpu_isa::avx2_vnni)) return "avx2_vnni";
  if (has(cpu_isa::avx2)) return "avx2";
  if (has(cpu_isa::avx)) return "avx";
  return has(cpu_isa::sse41) ? "sse41" : "baseline";
}

void* thread_scratch(ScratchSlot slot, size_t bytes) {
  thread_local std::array<Scratch, static_cast<size_t>(ScratchSlot::kCount)> slots;
  Scratch& s = slots[static_cast<size_t>(slot)];
  if (s.bytes < bytes) {
    s.memory.reset();
    s.bytes = 0;
    s.memory.reset(::operator new(bytes, std::align_val_t{64}));
    s.bytes = bytes;
  }
  return s.memory.get();
}

struct Matmul::Impl {
  explicit Impl(const MatmulShape& s) : primitive(create(s)), scratch_bytes(description.scratchpad_desc().get_size()) {}

  dnnl::matmul create(const MatmulShape& s) {
    const auto type = data_type(s.dtype);
    const memory::desc bias({1, s.n}, type, Tag::ab);
    const bool packed = s.b_row == 0 && s.b_column == 0;
    description =
        describe(matrix(s.m, s.k, type, s.a_row, s.a_column),
                 packed ? packed_layout(s.k, s.n, type) : matrix(s.k, s.n, type, s.b_row, s.b_column),
                 s.bias ? &bias : nullptr, matrix(s.m, s.n, memory::data_type::f32, s.c_row, 1), s.accumulate);
    if (s.bias) bias_desc = bias;
    has_bias = s.bias;
    return dnnl::matmul(description);
  }

  dnnl::matmul::primitive_desc description;
  memory::desc bias_desc;
  bool has_bias = false;
  dnnl::matmul primitive;
  size_t scratch_bytes;
};

namespace {
// A product's arguments, made once a thread: afterwards a call only sets pointers.
struct Arguments {
  explicit Arguments(const Matmul::Impl& impl)
      : a(impl.description.src_desc(), engine(), nullptr),
        b(impl.description.weights_desc(), engine(), nullptr),
        c(impl.description.dst_desc(), engine(), nullptr) {
    map = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    if (impl.has_bias) {
      bias = memory(impl.bias_desc, engine(), nullptr);
      map.emplace(DNNL_ARG_BIAS, bias);
    }
    if (impl.scratch_bytes > 0) {
      scratch = memory(impl.description.scratchpad_desc(), engine(), nullptr);
      map.emplace(DNNL_ARG_SCRATCHPAD, scratch);
    }
  }
  memory a, b, c, bias, scratch;
  std::unordered_map<int, memory> map;
};
}  // namespace

void Matmul::run(float* c, const void* a, const void* b, const void* bias) const {
  thread_local std::unordered_map<const Impl*, std::unique_ptr<Arguments>> bound;
  dnnl::stream& stream = thread_stream();
  MS_CHECK(impl_->has_bias == (bias != nullptr));
  try {
    auto& arguments = bound[impl_];
    if (!arguments) arguments = std::make_unique<Arguments>(*impl_);
    arguments->a.set_data_handle(const_cast<void*>(a));
    arguments->b.set_data_handle(const_cast<void*>(b));
    arguments->c.set_data_handle(c);
    if (bias) arguments->bias.set_data_handle(const_cast<void*>(bias));
    if (impl_->scratch_bytes > 0)
      arguments->scratch.set_data_handle(thread_scratch(ScratchSlot::kOneDnn, impl_->scratch_bytes));
    impl_->primitive.execute(stream, arguments->map);
  } catch (const dnnl::error& e) {
    fail("run", e);
  }
}

Matmul find_matmul(const MatmulShape& shape) { return Matmul(find_or_create<MatmulShape, Matmul::Impl>(shape)); }

struct Packing::Impl {
  explicit Impl(const PackKey& key_) : key(key_) {
    const auto type = data_type(key.dtype);
    const memory::desc layout = packed_layout(key.k, key.n, type);
    bytes = static_cast<int64_t>(layout.get_size());
    const bool ranges = layout == column_blocks(key.k, key.n, type);
    piece_columns = ranges ? std::max<int64_t>(1, kPackPieceElements / key.k / 64) * 64 : key.n;
    pieces = (key.n + piece_columns - 1) / piece_columns;
    const int64_t last = key.n - (pieces - 1) * piece_columns;
    whole_piece = {key, std::min(piece_columns, key.n),
                   ranges ? column_blocks(key.k, std::min(piece_columns, key.n), type) : layout};
    last_piece = {key, last, ranges ? column_blocks(key.k, last, type) : layout};
    piece_stride = static_cast<int64_t>(whole_piece.target.get_size());
  }
  struct Piece {
    Piece() = default;
    Piece(const PackKey& key, int64_t columns, const memory::desc& to)
        : source(matrix(key.k, columns, data_type(key.dtype), key.b_row, key.b_column)), target(to) {
      dnnl::primitive_attr attributes;
      attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const dnnl::reorder::primitive_desc d(engine(), source, engine(), target, attributes);
      scratch = d.scratchpad_desc();
      primitive = dnnl::reorder(d);
    }
    memory::desc source, target, scratch;
    dnnl::reorder primitive;
  };
  PackKey key;
  int64_t bytes = 0, piece_columns = 0, pieces = 0, piece_stride = 0;
  Piece whole_piece, last_piece;
};

int64_t Packing::bytes() const { return impl_->bytes; }
int64_t Packing::pieces() const { return impl_->pieces; }

void Packing::run_piece(void* packed, const void* b, int64_t piece) const {
  dnnl::stream& stream = thread_stream();
  const auto& p = piece + 1 == impl_->pieces ? impl_->last_piece : impl_->whole_piece;
  const auto* from = static_cast<const std::byte*>(b) +
                     piece * impl_->piece_columns * impl_->key.b_column * dtype_bytes(impl_->key.dtype);
  try {
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_FROM, memory(p.source, engine(), const_cast<std::byte*>(from))},
        {DNNL_ARG_TO, memory(p.target, engine(), static_cast<std::byte*>(packed) + piece * impl_->piece_stride)}};
    if (const size_t bytes = p.scratch.get_size(); bytes > 0)
      arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(p.scratch, engine(), thread_scratch(ScratchSlot::kOneDnn, bytes)));
    p.primitive.execute(stream, arguments);
  } catch (const dnnl::error& e) {
    fail("pack the weights of", e);
  }
}

Packing find_packing(int64_t k, int64_t n, int64_t b_row, int64_t b_column, DType dtype) {
  return Packing(find_or_create<PackKey, Packing::Impl>({k, n, b_row, b_column, dtype}));
}

void sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
           const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  thread_stream();
  const dnnl::status status =
      dnnl::sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl::status::success) fail("run", dnnl::error(static_cast<dnnl_status_t>(status), "sgemm"));
}

}  // namespace megaslide::onednn

namespace megaslide {

std::string version_of_onednn() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace megaslide
