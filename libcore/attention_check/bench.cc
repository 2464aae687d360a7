#include "attention_check/bench.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "attention_check/peak_memory.h"
#include "attention_check/reference.h"
#include "base/philox.h"
#include "base/svg.h"
#include "kernels/attention/attention_literal.h"
#include "kernels/dsa/dsa_literal.h"
#include "tensor/tensor.h"

namespace megaslide {
namespace {

int64_t tokens_of(const BenchOptions& o) { return o.grid[0] * o.grid[1] * o.grid[2]; }

DsaShape dsa_shape(const BenchOptions& o) {
  DsaShape s;
  s.batch = o.batch, s.frames = o.grid[0], s.height = o.grid[1], s.width = o.grid[2];
  s.heads = o.heads, s.head_dim = o.head_dim, s.scale = 1 / std::sqrt(static_cast<float>(o.head_dim));
  for (size_t a = 0; a < 3; ++a) s.kernel[a] = o.kernel[a], s.reach[a] = static_cast<float>(o.reach[a]);
  s.mode = o.mode, s.groups = o.groups;
  return s;
}
AttentionShape dense_shape(const BenchOptions& o) {
  return {o.batch, tokens_of(o), tokens_of(o), o.heads, o.head_dim, dsa_shape(o).scale};
}
WindowShape window_shape(const BenchOptions& o) {
  return {o.batch, o.grid[0], o.grid[1], o.grid[2], o.heads, o.head_dim, dsa_shape(o).scale,
          {o.kernel[0], o.kernel[1], o.kernel[2]}, 0};
}

// Uniform in (−√3, √3): mean 0, variance 1.
HostTensor random_tensor(int64_t n, DType dtype, uint64_t seed, uint64_t series, Stream& stream) {
  HostTensor t(dtype, {n});
  const Random random(seed, RandomPurpose::kTest);
  stream.parallel_for((n + 4095) / 4096, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> piece(4096);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * 4096, count = std::min<int64_t>(4096, n - first);
      for (int64_t j = 0; j < count; j += 4) {
        const auto words = random.bits(series, static_cast<uint64_t>(first + j) / 4);
        for (int64_t k = 0; k < std::min<int64_t>(4, count - j); ++k)
          piece[static_cast<size_t>(j + k)] =
              static_cast<float>((2 * Random::to_unit(words[static_cast<size_t>(k)]) - 1) * 1.7320508075688772);
      }
      convert_from_f32(t.data() + first * dtype_bytes(dtype), dtype, piece.data(), count);
    }
  });
  return t;
}

struct BenchTensors {
  BenchTensors(const BenchOptions& o, Stream& stream) {
    const int64_t n = o.batch * tokens_of(o) * o.heads * o.head_dim;
    q = random_tensor(n, o.dtype, o.seed, 1, stream);
    k = random_tensor(n, o.dtype, o.seed, 2, stream);
    v = random_tensor(n, o.dtype, o.seed, 3, stream);
    out = HostTensor(DType::kF32, {n});
    lse = HostTensor(DType::kF32, {n / o.head_dim});
    if (!o.backward) return;
    dout = random_tensor(n, DType::kF32, o.seed, 4, stream);
    for (HostTensor* g : {&dq, &dk, &dv}) *g = HostTensor(DType::kF32, {n});
  }
  HostTensor q, k, v, out, lse, dout, dq, dk, dv, offsets, doffsets, workspace;
};

// One operator: what to run and what it costs.
struct Operator {
  std::function<void()> forward, backward;
  Cost forward_cost, backward_cost;
  std::function<void(double* row, int64_t batch, int64_t token, int64_t head)> reference;
};

template <class Shape>
void bind_attention(Operator& op, BenchTensors& x, const Shape& s, const BenchOptions& o, Stream& stream,
                    const auto& forward, const auto& backward, int64_t workspace) {
  x.workspace = HostTensor(DType::kU8, {workspace});
  const DType t = o.dtype;
  op.forward = [&x, &stream, &forward, s, t] {
    forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), x.workspace.data(), s, t);
  };
  op.forward_cost = forward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, t);
  if (!o.backward) return;
  op.backward = [&x, &stream, &backward, s, t] {
    backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), x.q.data(), x.k.data(), x.v.data(), x.out.f32(), x.lse.f32(),
             x.dout.f32(), x.workspace.data(), s, t);
  };
  op.backward_cost = backward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                   nullptr, s, t);
}

template <class I>
void bind_reference(Operator& op, const std::string& name, BenchTensors& x, const BenchOptions& o) {
  const auto* q = reinterpret_cast<const I*>(x.q.data());
  const auto* k = reinterpret_cast<const I*>(x.k.data());
  const auto* v = reinterpret_cast<const I*>(x.v.data());
  if (name == "dsa") {
    op.reference = [=, &x, s = dsa_shape(o)](double* row, int64_t b, int64_t n, int64_t h) {
      DsaLiteralQuery<ArithF64>(s, DsaInputs<I, float>{q, k, v, x.offsets.f32()}, b, n, h).output(row);
    };
    return;
  }
  op.reference = [=, window = name == "window", s = window_shape(o)](double* row, int64_t b, int64_t n, int64_t h) {
    std::vector<int64_t> keys(static_cast<size_t>(s.tokens()));
    std::iota(keys.begin(), keys.end(), 0);
    if (window) keys = window_keys(s, n);
    const int64_t stride = s.heads * s.head_dim, start = b * s.tokens() * stride + h * s.head_dim;
    const I* query = q + start + n * stride;
    AttentionLiteralQuery<ArithF64, I>(query, k + start, v + start, stride, s.head_dim, s.scale, keys).output(row);
  };
}

void bind_dsa(Operator& op, BenchTensors& x, const BenchOptions& o, Stream& stream) {
  const DsaShape s = dsa_shape(o);
  const DType t = o.dtype;
  const int64_t offsets = o.batch * s.tokens() * dsa_offset_count(s);
  x.offsets = random_tensor(offsets, DType::kF32, o.seed, 5, stream);
  if (o.backward) x.doffsets = HostTensor(DType::kF32, {offsets});
  const int64_t backward_bytes = o.backward ? dsa_backward_workspace_bytes(s, t) : 0;
  x.workspace = HostTensor(DType::kU8, {std::max(dsa_forward_workspace_bytes(s, t), backward_bytes)});
  op.forward = [&x, &stream, s, t] {
    dsa_forward(stream, x.out.f32(), x.lse.f32(), x.q.data(), x.k.data(), x.v.data(), x.offsets.f32(),
                x.workspace.data(), s, t);
  };
  op.forward_cost = dsa_forward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, s, t);
  if (!o.backward) return;
  op.backward = [&x, &stream, s, t] {
    dsa_backward(stream, x.dq.f32(), x.dk.f32(), x.dv.f32(), x.doffsets.f32(), x.q.data(), x.k.data(), x.v.data(),
                 x.offsets.f32(), x.out.f32(), x.lse.f32(), x.dout.f32(), x.workspace.data(), s, t);
  };
  op.backward_cost = dsa_backward.cost(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                       nullptr, nullptr, nullptr, s, t);
}

Operator make_operator(const std::string& name, BenchTensors& x, const BenchOptions& o, Stream& stream) {
  Operator op;
  if (name == "dsa") {
    bind_dsa(op, x, o, stream);
  } else if (name == "window") {
    const WindowShape s = window_shape(o);
    bind_attention(op, x, s, o, stream, window_attention_forward, window_attention_backward,
                   std::max(window_attention_forward_workspace_bytes(s, o.dtype),
                            window_attention_backward_workspace_bytes(s, o.dtype)));
  } else if (name == "dense") {
    const AttentionShape s = dense_shape(o);
    bind_attention(op, x, s, o, stream, dense_attention_forward, dense_attention_backward,
                   std::max(dense_attention_forward_workspace_bytes(s, o.dtype),
                            dense_attention_backward_workspace_bytes(s, o.dtype)));
  } else {
    const AttentionShape s = dense_shape(o);
    bind_attention(op, x, s, o, stream, dense_materialised_forward, dense_materialised_backward,
                   o.backward ? dense_materialised_backward_workspace_bytes(s, o.dtype)
                              : dense_materialised_forward_workspace_bytes(s, o.dtype));
  }
  o.dtype == DType::kBF16 ? bind_reference<bf16>(op, name, x, o) : bind_reference<float>(op, name, x, o);
  return op;
}

double median_ms(int64_t repeat, const std::function<void()>& work) {
  std::vector<double> ms;
  for (int64_t i = 0; i < repeat; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

// Up to 64 rows spread over the tensor, fewer where one costs much.
double output_error(const Operator& op, BenchTensors& x, const BenchOptions& o) {
  const int64_t rows = o.batch * tokens_of(o) * o.heads;
  const int64_t count = std::min<int64_t>(rows, tokens_of(o) > 4096 ? 16 : 64);
  std::vector<double> row(static_cast<size_t>(o.head_dim));
  double worst = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double share = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    const int64_t at = static_cast<int64_t>(static_cast<double>(rows - 1) * share);
    op.reference(row.data(), at / (tokens_of(o) * o.heads), at / o.heads % tokens_of(o), at % o.heads);
    double difference = 0, norm = 0;
    for (int64_t c = 0; c < o.head_dim; ++c) {
      const double r = row[static_cast<size_t>(c)], e = static_cast<double>(x.out.f32()[at * o.head_dim + c]) - r;
      difference += e * e, norm += r * r;
    }
    worst = std::max(worst, std::sqrt(difference / std::max(norm, 1e-300)));
  }
  return worst;
}

BenchRow measure(const std::string& name, const BenchOptions& o, const MachinePeaks& peaks) {
  BenchRow row;
  row.op = name, row.grid = o.grid, row.tokens = o.batch * tokens_of(o), row.dtype = o.dtype;
  if (name == "dsa") row.kernel = dsa_kernel_of(dsa_shape(o), o.dtype).kernel == DsaKernel::kTile ? "tile" : "gather";
  const PeakMemory peak;
  InlineStream stream(o.threads);
  BenchTensors x(o, stream);
  const Operator op = make_operator(name, x, o, stream);
  op.forward();
  row.forward_ms = median_ms(o.repeat, op.forward);
  row.flop = op.forward_cost.flops, row.bytes = op.forward_cost.bytes;
  if (o.backward) {
    op.backward();
    row.backward_ms = median_ms(o.repeat, op.backward);
    row.flop += op.backward_cost.flops, row.bytes += op.backward_cost.bytes;
  }
  row.peak_bytes = peak.bytes();
  const double ms = row.forward_ms + std::max(row.backward_ms, 0.0);
  row.tflops = row.flop / ms * 1e-9;
  row.roofline = roofline_share(peaks, row.flop, row.bytes, ms * 1e-3);
  row.max_relative_error = output_error(op, x, o);
  return row;
}

}  // namespace

std::array<double, 3> parse_reach(const std::string& text) {
  std::array<double, 3> r{};
  const char *at = text.data(), *end = at + text.size();
  bool ok = true;
  for (size_t a = 0; a < 3 && ok; ++a) {
    const auto [stop, error] = std::from_chars(at, end, r[a]);
    ok = error == std::errc() && r[a] >= 0 && r[a] <= 1e6 && (a == 2 ? stop == end : stop != end && *stop == ',');
    at = stop + (a < 2 && ok ? 1 : 0);
  }
  if (!ok) throw usage_error(fmt::format("--reach: \"{}\" is not three numbers from 0 up", text), "write t,h,w such as 1,2,2");
  return r;
}

void validate(const BenchOptions& o) {
  if (o.groups > o.heads)
    throw usage_error(fmt::format("{} offset groups for {} heads", o.groups, o.heads), "use --groups up to --heads");
  const double elements = static_cast<double>(o.batch) * static_cast<double>(o.grid[0]) * static_cast<double>(o.grid[1]) *
                          static_cast<double>(o.grid[2]) * static_cast<double>(o.heads) * static_cast<double>(o.head_dim);
  if (elements > 1e12) throw usage_error("the tensors would have more than 10¹² elements", "use a smaller --grid");
}

void validate_operator(const std::string& op) {
  for (const char* known : {"dense", "dense-materialised", "window", "dsa"})
    if (op == known) return;
  throw usage_error(fmt::format("no operator is called \"{}\"", op), "use dense, dense-materialised, window or dsa");
}

BenchRow bench_operator(const std::string& op, const BenchOptions& o, const MachinePeaks& peaks) {
  validate(o);
  validate_operator(op);
  // On a thread of its own: its scratch goes with it, and does not count for the next operator.
  BenchRow row;
  std::exception_ptr failure;
  std::thread worker([&] {
    try {
      row = measure(op, o, peaks);
    } catch (const std::bad_alloc&) {
      failure = std::make_exception_ptr(
          Error(fmt::format("{}: not enough memory for {} tokens", op, tokens_of(o)), "use a smaller --grid"));
    } catch (...) {
      failure = std::current_exception();
    }
  });
  worker.join();
  if (failure) std::rethrow_exception(failure);
  return row;
}

std::string to_json_line(const BenchRow& r) {
  nlohmann::ordered_json j{{"op", r.op}, {"grid", r.grid}, {"tokens", r.tokens},
                           {"dtype", r.dtype == DType::kBF16 ? "bf16" : "fp32"}, {"forward_ms", r.forward_ms}};
  j["backward_ms"] = r.backward_ms < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(r.backward_ms);
  j["flop"] = static_cast<int64_t>(r.flop), j["tflops"] = r.tflops, j["bytes"] = static_cast<int64_t>(r.bytes);
  j["peak_bytes"] = r.peak_bytes < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(r.peak_bytes);
  j["roofline"] = r.roofline;
  j["max_relative_error"] = r.max_relative_error;
  if (!r.kernel.empty()) j["kernel"] = r.kernel;
  return j.dump();
}

std::string table_header() {
  return fmt::format("{:<19}{:>9} {:>5}{:>12}{:>13}{:>10}{:>9}{:>10}{:>11}{:>11}", "operator", "tokens", "type", "forward ms",
                     "backward ms", "Gflop", "Gflop/s", "roofline", "peak MiB", "error");
}
std::string to_table_line(const BenchRow& r) {
  return fmt::format("{:<19}{:>9} {:>5}{:>12.3f}{:>13}{:>10.3g}{:>9.1f}{:>9.1f}%{:>11}{:>11.1e}",
                     r.kernel.empty() ? r.op : fmt::format("{} ({})", r.op, r.kernel), r.tokens,
                     r.dtype == DType::kBF16 ? "bf16" : "fp32", r.forward_ms,
                     r.backward_ms < 0 ? "-" : fmt::format("{:.3f}", r.backward_ms), r.flop * 1e-9, r.tflops * 1e3,
                     100 * r.roofline, r.peak_bytes < 0 ? "-" : fmt::format("{:.1f}", static_cast<double>(r.peak_bytes) / 1048576),
                     r.max_relative_error);
}

std::string to_svg(const std::vector<BenchRow>& rows) {
  std::vector<Series> time, memory;
  for (const BenchRow& r : rows) {
    if (time.empty() || time.back().name != r.op) {
      time.push_back({.name = r.op});
      memory.push_back({.name = r.op});
    }
    const auto tokens = static_cast<double>(r.tokens);
    time.back().x.push_back(tokens), time.back().y.push_back((r.forward_ms + std::max(r.backward_ms, 0.0)) * 1e-3);
    memory.back().x.push_back(tokens), memory.back().y.push_back(static_cast<double>(r.peak_bytes) * 1e-6);
  }
  constexpr int kWidth = 720, kHeight = 360;
  const auto chart = [&](const char* title, const char* label, const std::vector<Series>& series) {
    return line_chart({.title = title, .x_label = "tokens", .y_label = label, .width = kWidth, .height = kHeight, .log_x = true, .log_y = true, .markers = true},
                      series);
  };
  const bool both = !rows.empty() && rows.front().backward_ms >= 0;
  return fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n{2}\n<g transform=\"translate(0 {3})\">\n{4}\n</g>\n</svg>\n",
                     kWidth, 2 * kHeight, chart(both ? "Time, forward and backward" : "Time, forward", "seconds", time), kHeight,
                     chart("Peak memory, inputs and results included", "MB", memory));
}

}  // namespace megaslide
