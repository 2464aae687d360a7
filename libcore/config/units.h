// Strict numbers: decimal only, whole text consumed, no surrounding blanks. nullopt where the text is something else.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megaslide {

std::optional<int64_t> parse_integer(std::string_view text);  // -12; not 0x10, 010, 1e3, +1
std::optional<double> parse_number(std::string_view text);    // 0.5, 1e-4, 3; finite; not .5, 5., inf, nan, 0x1p3

// Bytes: "24GiB", "24 GiB", "5GB", "1.5TB", "512", "10B". Ki, Mi, Gi, Ti are powers of 1024; k, K, M, G, T of 1000.
// Not negative, at most 2^62; a fraction is rounded down to whole bytes.
std::optional<int64_t> parse_bytes(std::string_view text);

// A rate of `unit` a second: "12GB/s", "30GiB/s" for unit "B"; "4.2GFLOP/s" for unit "FLOP". A bare number is in units.
std::optional<double> parse_rate(std::string_view text, std::string_view unit);

// Seconds: "120", "90s", "5min", "2h", "250ms", "4us".
std::optional<double> parse_seconds(std::string_view text);

// A count: "5k", "2M", "1.5G", "1000".
std::optional<int64_t> parse_count(std::string_view text);

// "832x480" with n = 2, "5x30x52" with n = 3: n positive integers of at most 2^31 - 1.
std::optional<std::vector<int64_t>> parse_extents(std::string_view text, size_t n);

// Shortest text that reads back as the same value: "24GiB", "5GB" or plain bytes; "0.0001".
std::string format_bytes_exact(int64_t bytes);
std::string format_number(double value);

}  // namespace megaslide
