#include "text/gunzip.h"

#include <algorithm>

#include <zlib.h>

#include "base/error.h"
#include "base/library_versions.h"

namespace megaslide {
namespace {

constexpr int kGzipWindow = 16 + MAX_WBITS;  // zlib's way to say: a gzip header
constexpr const char* kDamaged = "fetch the file again: it is damaged";

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view bytes, const std::string& source, int64_t max_bytes) {
  MS_CHECK(bytes.size() < (size_t{1} << 31), "{}", bytes.size());
  z_stream z{};
  MS_CHECK(inflateInit2(&z, kGzipWindow) == Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib's type; it only reads
  z.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int result = Z_OK;
  while (result == Z_OK && static_cast<int64_t>(out.size()) <= max_bytes) {
    const size_t had = out.size();
    const size_t piece = std::min<size_t>(1 << 18, static_cast<size_t>(max_bytes) + 1 - had);
    if (piece == 0) break;
    out.resize(had + piece);
    z.next_out = reinterpret_cast<Bytef*>(out.data() + had);
    z.avail_out = static_cast<uInt>(piece);
    result = inflate(&z, Z_NO_FLUSH);
    out.resize(out.size() - z.avail_out);
  }
  const size_t left = z.avail_in;
  inflateEnd(&z);
  if (static_cast<int64_t>(out.size()) > max_bytes)
    throw Error(fmt::format("{}: unpacks to more than {} bytes", source, max_bytes), "use the published file");
  if (result == Z_BUF_ERROR) throw Error(fmt::format("{}: the gzip data ends early", source), kDamaged);
  if (result != Z_STREAM_END) throw Error(fmt::format("{}: damaged gzip data", source), kDamaged);
  if (left > 0) throw Error(fmt::format("{}: {} bytes follow the gzip data", source, left), kDamaged);
  return out;
}

std::string version_of_zlib() { return zlibVersion(); }

}  // namespace megaslide
