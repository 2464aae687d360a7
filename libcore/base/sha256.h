// SHA-256 (FIPS 180-4).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace megaslide {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  // 64 lower-case hexadecimal digits of all bytes so far; update() may continue.
  std::string hex() const;

 private:
  struct Free {
    void operator()(evp_md_ctx_st* p) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);
std::string sha256_file(const std::string& path);  // streams; throws Error when unreadable

struct CopiedFile {
  int64_t bytes = 0;
  std::string sha256;
};
// Copies a file's content, hashing it on the way, and fsyncs the copy.
CopiedFile copy_file(const std::string& from, const std::string& to);

}  // namespace megaslide
