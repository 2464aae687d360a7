// A folder of one test's own, removed at its end. Tests run side by side, each in its process: a name that two of them
// could share would let one pull the files from under the other.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace megaslide::testing_support {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "megaslide-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (std::filesystem::path(path_) / name).string(); }
  // Both make the folders of the name and return its path.
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = with_parent(name);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string copy(const std::string& from, const std::string& name) const {
    const std::string path = with_parent(name);
    std::filesystem::copy_file(from, path, std::filesystem::copy_options::overwrite_existing);
    return path;
  }

 private:
  std::string with_parent(const std::string& name) const {
    const std::filesystem::path path = *this / name;
    std::filesystem::create_directories(path.parent_path());
    return path;
  }
  std::string path_;
};

}  // namespace megaslide::testing_support
