#include "tensor/dtype.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"

namespace megaslide {
namespace {
struct Entry {
  std::string_view name;
  int bits;
};
constexpr std::array<Entry, 22> kTypes{{{"BOOL", 8}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8}, {"I8", 8},
                                        {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
                                        {"F8_E5M2FNUZ", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16},
                                        {"I32", 32}, {"U32", 32}, {"F32", 32}, {"C64", 64}, {"F64", 64}, {"I64", 64},
                                        {"U64", 64}}};
}  // namespace

int dtype_bits(DType t) { return kTypes[static_cast<size_t>(t)].bits; }
std::string_view dtype_name(DType t) { return kTypes[static_cast<size_t>(t)].name; }
std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<DType>(i);
  return std::nullopt;
}

float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h} >> 15 << 31, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float x = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -x : x;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  const uint32_t a = u & 0x7fffffff;
  if (a > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (a >> 13 & 0x3ff));
  if (a >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and up round to infinity
  if (a < 0x38800000) {                                              // subnormal: the fp32 adder rounds for us
    const float f = std::bit_cast<float>(a) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(f) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}

float f8_e4m3_to_float(uint8_t x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  if ((x & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float v = exponent ? std::ldexp(1.f + static_cast<float>(mantissa) / 8, exponent - 7)
                           : std::ldexp(static_cast<float>(mantissa), -9);
  return x & 0x80 ? -v : v;
}

float f8_e5m2_to_float(uint8_t x) { return f16_to_float(static_cast<uint16_t>(x << 8)); }

void convert_to_f32(float* dst, const void* src, DType from, int64_t n) {
  const auto* p = static_cast<const unsigned char*>(src);
  auto each = [&](auto zero, auto convert) {
    for (int64_t i = 0; i < n; ++i) {
      auto v = zero;
      std::memcpy(&v, p + i * static_cast<int64_t>(sizeof v), sizeof v);
      dst[i] = convert(v);
    }
  };
  switch (from) {
    case DType::kF32: if (n) std::memcpy(dst, src, static_cast<size_t>(n) * 4); return;
    case DType::kBF16: return each(uint16_t{0}, [](uint16_t v) { return std::bit_cast<float>(uint32_t{v} << 16); });
    case DType::kF16: return each(uint16_t{0}, f16_to_float);
    case DType::kF8_E4M3: return each(uint8_t{0}, f8_e4m3_to_float);
    case DType::kF8_E5M2: return each(uint8_t{0}, f8_e5m2_to_float);
    case DType::kF64: return each(double{0}, [](double v) { return static_cast<float>(v); });
    default: throw Error(fmt::format("cannot convert {} to F32", dtype_name(from)));
  }
}

void convert_from_f32(void* dst, DType to, const float* src, int64_t n) {
  auto* p = static_cast<uint16_t*>(dst);
  switch (to) {
    case DType::kF32: if (n) std::memcpy(dst, src, static_cast<size_t>(n) * 4); return;
    case DType::kBF16: for (int64_t i = 0; i < n; ++i) p[i] = to_bf16(src[i]).bits; return;
    case DType::kF16: for (int64_t i = 0; i < n; ++i) p[i] = float_to_f16(src[i]); return;
    default: throw Error(fmt::format("cannot convert F32 to {}", dtype_name(to)));
  }
}

}  // namespace megaslide
