#include "config/units.h"

#include <gtest/gtest.h>

#include "config/nearest.h"

namespace megaslide {
namespace {

TEST(Units, IntegersAreDecimalAndWhole) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  for (const char* bad : {"", "-", "+1", "0x10", "010", "1e3", "1.0", " 1", "1 ", "1_000", "9223372036854775808", "yes", "-0x1", "--1"})
    EXPECT_FALSE(parse_integer(bad)) << bad;
}

TEST(Units, NumbersAreFinite) {
  EXPECT_EQ(parse_number("1e-4"), 1e-4);
  EXPECT_EQ(parse_number("-2.5E+3"), -2500.0);
  EXPECT_EQ(parse_number("3"), 3.0);
  for (const char* bad : {"", "inf", "nan", "1e999", ".5", "5.", "5.e3", "0x1p3", "1,5", "1e", "00.5", "- 1", "1f"})
    EXPECT_FALSE(parse_number(bad)) << bad;
}

TEST(Units, Bytes) {
  EXPECT_EQ(parse_bytes("24GiB"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("24 GiB"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("5GB"), 5000000000);
  EXPECT_EQ(parse_bytes("1.5TB"), 1500000000000);
  EXPECT_EQ(parse_bytes("512"), 512);
  EXPECT_EQ(parse_bytes("10B"), 10);
  EXPECT_EQ(parse_bytes("64kB"), 64000);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  for (const char* bad : {"", "GB", "-1GB", "5gb", "5Gb", "5G B", "5  GB", "1e300GB", "5TiBB", "5iB", "5kiB", "9999999999999999999", "5GB/s"})
    EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Units, RatesSecondsCountsExtents) {
  EXPECT_EQ(parse_rate("12GB/s", "B"), 12e9);
  EXPECT_EQ(parse_rate("1GiB/s", "B"), 1073741824.0);
  EXPECT_EQ(parse_rate("989TFLOP/s", "FLOP"), 989e12);
  EXPECT_EQ(parse_rate("7", "B"), 7.0);
  for (const char* bad : {"12GB", "12/s", "12GFLOP/s", "-1GB/s", "GB/s", "12GB/h"}) EXPECT_FALSE(parse_rate(bad, "B")) << bad;
  EXPECT_EQ(parse_seconds("2min"), 120.0);
  EXPECT_EQ(parse_seconds("250ms"), 0.25);
  EXPECT_EQ(parse_seconds("2h"), 7200.0);
  EXPECT_FALSE(parse_seconds("2m"));
  EXPECT_EQ(parse_count("5k"), 5000);
  EXPECT_EQ(parse_count("1.5M"), 1500000);
  EXPECT_FALSE(parse_count("1.0005k5"));
  EXPECT_FALSE(parse_count("0.5"));
  EXPECT_EQ(parse_extents("832x480", 2), (std::vector<int64_t>{832, 480}));
  EXPECT_EQ(parse_extents("5x30x52", 3), (std::vector<int64_t>{5, 30, 52}));
  for (const char* bad : {"832", "832x", "x480", "832x480x", "832x480x3", "832X480", "0x480", "-1x4", "08x4", "2147483648x1"})
    EXPECT_FALSE(parse_extents(bad, 2)) << bad;
}

TEST(Units, ExactBytesReadBack) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1024}, int64_t{24} << 30, int64_t{5000000000}, int64_t{1500000000000}, int64_t{123456789}})
    EXPECT_EQ(parse_bytes(format_bytes_exact(n)), n) << format_bytes_exact(n);
  EXPECT_EQ(format_bytes_exact(int64_t{24} << 30), "24GiB");
}

TEST(Nearest, MisspellingsAndStrangers) {
  const std::vector<std::string> names = {"learning_rate", "weight_decay", "lr_warmup_steps", "eps"};
  EXPECT_EQ(nearest_name("lerning_rate", names), "learning_rate");
  EXPECT_EQ(nearest_name("learning_raet", names), "learning_rate");
  EXPECT_EQ(nearest_name("weight-decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("epss", names), "eps");
  EXPECT_EQ(nearest_name("banana", names), "");
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'a'), names), "");
  EXPECT_EQ(nearest_name("", names), "");
}

}  // namespace
}  // namespace megaslide
