#include "base/md5.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace megaslide {

std::string md5_hex(std::span<const std::byte> bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_md5(), nullptr) != 1)
    throw Error("MD5 is not available in the installed OpenSSL", "an OpenSSL in FIPS mode has none: do without frame hashes");
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace megaslide
