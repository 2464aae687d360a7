#include "config/yaml.h"

#include <cerrno>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "base/error.h"
#include "base/library_versions.h"
#include "base/utf8.h"

namespace megaslide {
namespace {

Error at(const std::string& name, int line, int column, const std::string& text) {
  return usage_error(fmt::format("{}:{}:{}: {}", name, line, column, text));
}

// Everything that yaml-cpp would take, or guess an encoding from, without a word.
void check_text(std::string_view text, const std::string& name) {
  int line = 1, column = 1;
  bool indentation = true;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t n = code_point_at(text, i).bytes;
    if (n == 0) throw at(name, line, column, fmt::format("not UTF-8 text (byte 0x{:02x}): save the file as UTF-8", c));
    if (c == '\t' && indentation) throw at(name, line, column, "a tab in the indentation: YAML wants spaces");
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f)
      throw at(name, line, column, fmt::format("control character 0x{:02x}: this is not a text file", c));
    if (c == '\n') {
      ++line;
      column = 1;
      indentation = true;
    } else {
      if (c != ' ') indentation = false;
      column += static_cast<int>(n);
    }
    i += n;
  }
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& name) : name_(name) {}
  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) throw at_mark(mark, "a second document: one file is one configuration");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(make(YamlNode::Kind::kNull, mark, "", anchor)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { throw at_mark(mark, kNoAnchors); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value) override {
    // The text is UTF-8, but yaml-cpp makes lone bytes of these two.
    if (find_invalid_utf8(value) != value.size()) throw at_mark(mark, "the escapes \\N and \\_ are not supported: write the character itself");
    YamlNode node = make(YamlNode::Kind::kScalar, mark, tag, anchor);
    node.plain = tag != "!";
    if (node.plain && (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL")) node.kind = YamlNode::Kind::kNull;
    node.scalar = value;
    add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(make(YamlNode::Kind::kList, mark, tag, anchor), mark);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YAML::EmitterStyle::value) override {
    open(make(YamlNode::Kind::kMap, mark, tag, anchor), mark);
  }
  void OnMapEnd() override { close(); }

 private:
  static constexpr const char* kNoAnchors = "anchors and aliases are not supported: write the value out";

  Error at_mark(const YAML::Mark& mark, const std::string& text) const { return at(name_, mark.line + 1, mark.column + 1, text); }

  YamlNode make(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) throw at_mark(mark, kNoAnchors);
    if (!tag.empty() && tag != "?" && tag != "!") throw at_mark(mark, "tags (!!...) are not supported");
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }
  void open(YamlNode node, const YAML::Mark& mark) {
    if (static_cast<int>(stack_.size()) >= kMaxYamlDepth) throw at_mark(mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth));
    stack_.push_back({std::move(node)});
  }
  void close() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(node));
  }
  void add(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = stack_.back();
    if (parent.node.kind == YamlNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (parent.value_due) {
      parent.node.entries.back().value = std::move(node);
      parent.value_due = false;
    } else {
      if (node.kind != YamlNode::Kind::kScalar)
        throw at(name_, node.line, node.column, fmt::format("a key must be a name, got {}", describe_node(node)));
      if (node.plain && node.scalar == "<<")
        throw at(name_, node.line, node.column, "merge keys (<<) are not supported: write the keys out");
      parent.node.entries.push_back({std::move(node), {}});
      parent.value_due = true;
    }
  }

  struct Open {
    YamlNode node;
    bool value_due = false;  // a map's key has been read
  };
  const std::string& name_;
  YamlNode root_;
  std::vector<Open> stack_;
  int documents_ = 0;
};

bool looks_plain(const std::string& text) {
  if (text.empty() || text.size() > 200) return false;
  for (const char c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' || c == '-' || c == '+'))
      return false;
  if (text[0] == '-' || text[0] == '.' || text[0] == '+' || (text[0] >= '0' && text[0] <= '9')) return text[0] == '.' && text.size() > 1 && text[1] == '/';
  static constexpr std::string_view kWords[] = {"null", "Null", "NULL", "true", "false", "yes", "no", "on", "off", "y", "n"};
  for (const std::string_view word : kWords)
    if (text == word) return false;
  return true;
}

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& name) {
  if (text.size() > kMaxYamlBytes) throw usage_error(fmt::format("{}: larger than {} bytes: this is no configuration", name, kMaxYamlBytes));
  if (text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);  // a UTF-8 byte order mark, as some editors write it
  check_text(text, name);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(name);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    const std::string message = quote_unless_plain(e.msg);  // some end with a byte of the file, which may be half a character
    if (e.mark.is_null()) throw usage_error(fmt::format("{}: {}", name, message));
    throw at(name, e.mark.line + 1, e.mark.column + 1, message);
  }
  return builder.take();
}

std::string read_yaml_file(const std::string& path) {
  const bool standard = path == "-";
  const int fd = standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Error(system_error("open", path, errno).message(), "check the path", ErrorKind::kUsage);
  std::string text;
  char buffer[1 << 16];
  int failure = 0;
  while (text.size() <= kMaxYamlBytes) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failure = errno;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  if (!standard) ::close(fd);
  if (failure != 0) throw Error(system_error("read", path, failure).message(), {}, ErrorKind::kUsage);
  return text;
}

std::string yaml_quote(const std::string& text) {
  if (looks_plain(text)) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) out += fmt::format("\\x{:02x}", c);  // the reader takes no raw ones
    else out += c;
  }
  return out + '"';
}

std::string describe_node(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "nothing";
    case YamlNode::Kind::kScalar: return quote_for_message(node.scalar);
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a map";
  }
  return "?";
}

std::string version_of_yaml() { return MEGASLIDE_YAML_CPP_VERSION; }

}  // namespace megaslide
