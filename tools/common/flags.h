// Options with strict values: decimal numbers in a range, choices, sizes with units. CLI11 alone reads 010 as 8.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace megaslide {

CLI::Option* add_integer(CLI::App& app, const std::string& name, int64_t& value, int64_t low, int64_t high, const std::string& description);
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, double low, double high, const std::string& description);
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value, const std::vector<std::string>& choices,
                        const std::string& description);
CLI::Option* add_seed(CLI::App& app, const std::string& name, uint64_t& value, const std::string& description);
// "5GB", "24GiB", "1048576"
CLI::Option* add_bytes(CLI::App& app, const std::string& name, int64_t& value, const std::string& description);
// "832x480": width, height
CLI::Option* add_size(CLI::App& app, const std::string& name, int64_t& width, int64_t& height, const std::string& description);
// "5x30x52": frames, height, width
CLI::Option* add_grid(CLI::App& app, const std::string& name, std::array<int64_t, 3>& value, const std::string& description);

}  // namespace megaslide
