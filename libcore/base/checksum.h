// A fast 64-bit checksum against bytes that a disk, a controller or a kernel has changed; no protection against intent.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace megaslide {

// Four lanes take the little-endian words of 8 bytes in turn: x = word · odd constant, lane = rotate(lane ^ x ^ (x >> 32), 29)
// · odd constant; a last short word is filled up with zeros, and the length is mixed in at the end. Every step is a
// bijection of the lane and of the word, so a change within one word always changes the result; any other goes unseen about
// once in 2^64. (Without the mixing of the word the top bit of a product would cancel against a single bit of the next.)
uint64_t checksum64(std::span<const std::byte> bytes);

}  // namespace megaslide
