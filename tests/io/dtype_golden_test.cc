// Conversions of element types against values by PyTorch (tests/data/safetensors/conversions.safetensors).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "io/safetensors.h"
#include "tensor/dtype.h"

namespace megaslide {
namespace {

const SafetensorsFile& golden() {
  static const SafetensorsFile file = SafetensorsFile::open(MEGASLIDE_TEST_DATA "/safetensors/conversions.safetensors");
  return file;
}

float bits_to_float(uint32_t b) { return std::bit_cast<float>(b); }

TEST(DTypeGolden, ToF32) {
  for (const char* type : {"bf16", "f16", "f8_e4m3", "f8_e5m2"}) {
    const TensorView from = golden().view(type);
    const auto got = HostTensor::f32_from(from), expected = HostTensor::from(golden().view(std::string(type) + "_as_f32"));
    ASSERT_EQ(got.elements(), expected.elements());
    for (int64_t i = 0; i < got.elements(); ++i) {
      const float a = got.f32()[i], b = expected.f32()[i];
      if (std::isnan(b)) EXPECT_TRUE(std::isnan(a)) << type << " " << i;
      else EXPECT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)) << type << " " << i;
    }
  }
}

TEST(DTypeGolden, FromF32) {
  const auto f32 = HostTensor::from(golden().view("f32"));
  for (const auto& [name, type, infinity] : {std::tuple("f32_as_bf16", DType::kBF16, 0x7f80), std::tuple("f32_as_f16", DType::kF16, 0x7c00)}) {
    const auto expected = HostTensor::from(golden().view(name));
    HostTensor got(type, f32.shape());
    convert_from_f32(got.data(), type, f32.f32(), f32.elements());
    for (int64_t i = 0; i < f32.elements(); ++i) {
      uint16_t a, b;
      std::memcpy(&a, got.data() + 2 * i, 2);
      std::memcpy(&b, expected.data() + 2 * i, 2);
      if ((b & 0x7fff) > infinity) EXPECT_GT(a & 0x7fff, infinity) << name << " " << i;
      else EXPECT_EQ(a, b) << name << " " << i << " " << f32.f32()[i];
    }
  }
}

TEST(DTypeGolden, ReadsFromOddAddresses) {
  std::vector<std::byte> bytes(9);
  const float values[2] = {1.5f, bits_to_float(0x80000001)};
  std::memcpy(bytes.data() + 1, values, 8);
  float out[2];
  convert_to_f32(out, bytes.data() + 1, DType::kF32, 2);
  EXPECT_EQ(std::memcmp(out, values, 8), 0);
}

}  // namespace
}  // namespace megaslide
