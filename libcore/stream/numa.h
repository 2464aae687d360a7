// Memory nodes of the machine.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace megaslide {

// Numbers of a list as the kernel writes it: "0-2,5" is 0, 1, 2, 5. Empty where it is none, or names a number above 1023.
std::vector<int> parse_node_list(std::string_view text);

// The nodes that are in use; one or none where that is not known.
std::vector<int> online_memory_nodes();

// A set of them as mbind(2) takes it.
std::vector<unsigned long> node_mask(const std::vector<int>& nodes);

// Lets the pages of untouched memory alternate between `nodes`, so that reading it draws on the bandwidth of all. Where the
// kernel refuses, memory comes from the node of whoever touches it first.
void interleave(void* memory, int64_t bytes, const std::vector<int>& nodes);

}  // namespace megaslide
