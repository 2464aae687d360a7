// MD5 (RFC 1321), for comparing pictures with other programs' frame hashes; not for security.
#pragma once
#include <cstddef>
#include <span>
#include <string>

namespace megaslide {

std::string md5_hex(std::span<const std::byte> bytes);  // 32 lower-case hexadecimal digits

}  // namespace megaslide
