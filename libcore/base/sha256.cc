#include "base/sha256.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/atomic_file.h"
#include "base/disk_watch.h"
#include "base/error.h"
#include "base/library_versions.h"
#include "base/thread_pool.h"

namespace megaslide {

void Sha256::Free::operator()(evp_md_ctx_st* p) const { EVP_MD_CTX_free(p); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  MS_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  MS_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() const {
  std::unique_ptr<evp_md_ctx_st, Free> copy(EVP_MD_CTX_new());
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  MS_CHECK(copy && EVP_MD_CTX_copy_ex(copy.get(), context_.get()) == 1 &&
           EVP_DigestFinal_ex(copy.get(), digest, &size) == 1 && size == 32);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 s;
  s.update(bytes);
  return s.hex();
}

std::string sha256_hex(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text.data(), text.size()))); }

namespace {

// Bytes read; 0 at the end.
ssize_t read_some(int fd, const std::string& path, std::span<std::byte> buffer) {
  const DiskOperation operation("read", path);
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n >= 0) return n;
    if (errno != EINTR) throw system_error("read", path, errno);
  }
}

// Hands the file's content to `use` in pieces.
void read_in_pieces(const std::string& path, FunctionRef<void(std::span<const std::byte>)> use) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw system_error("open", path, errno);
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close_at_end{fd};
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t n = read_some(fd, path, buffer);
    if (n == 0) return;
    use({buffer.data(), static_cast<size_t>(n)});
  }
}

}  // namespace

std::string sha256_file(const std::string& path) {
  Sha256 hash;
  read_in_pieces(path, [&](std::span<const std::byte> piece) { hash.update(piece); });
  return hash.hex();
}

CopiedFile copy_file(const std::string& from, const std::string& to) {
  Sha256 hash;
  FileWriter out(to);
  read_in_pieces(from, [&](std::span<const std::byte> piece) {
    hash.update(piece);
    out.write(piece);
  });
  out.sync();
  out.close();
  return {out.written(), hash.hex()};
}

std::string version_of_openssl() { return OpenSSL_version(OPENSSL_VERSION_STRING); }

}  // namespace megaslide
