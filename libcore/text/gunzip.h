// Small gzip files in memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace megaslide {

bool is_gzip(std::string_view bytes);

// The contents of one gzip member (RFC 1952), its check sum compared. Throws Error naming `source` where the bytes are
// damaged, cut off, followed by others, or hold more than `max_bytes`; no more than that is ever unpacked.
std::string gunzip(std::string_view bytes, const std::string& source, int64_t max_bytes);

}  // namespace megaslide
