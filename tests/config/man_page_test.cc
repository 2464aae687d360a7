// megaslide-config(5) and megaslide-model(5) hold exactly the keys that the reader knows, with their defaults.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <regex>
#include <sstream>

#include "config/load.h"
#include "config/schemas.h"

namespace megaslide {
namespace {

struct PageKey {
  std::string name, value;
};

// Lines "*a.b* (…, default X)" of the sections of a page, by section.
std::vector<PageKey> page_keys(const std::string& page, const std::function<bool(const std::string&)>& wanted) {
  std::ifstream file(std::string(MEGASLIDE_SOURCE_DIR "/man/") + page);
  EXPECT_TRUE(file.good()) << page;
  static const std::regex key(R"(^\*([a-z0-9_.]+)\* \(.*default (.+)\)$)");
  std::vector<PageKey> keys;
  std::string line, section;
  std::smatch match;
  while (std::getline(file, line)) {
    if (line.rfind("# ", 0) == 0) section = line.substr(2);
    if (wanted(section) && std::regex_match(line, match, key)) keys.push_back({match[1], match[2]});
  }
  return keys;
}

void expect_same(const std::vector<PageKey>& page, const Schema& schema) {
  ASSERT_EQ(page.size(), schema.keys().size());
  for (size_t i = 0; i < page.size(); ++i) {
    EXPECT_EQ(page[i].name, schema.keys()[i].path);
    const std::string value = schema.keys()[i].write();
    EXPECT_EQ(page[i].value, value.empty() ? "none" : value) << page[i].name;
  }
}

std::string example_of(const std::string& page) {
  std::ifstream file(std::string(MEGASLIDE_SOURCE_DIR "/man/") + page);
  std::string line, text;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line == "```") inside = !inside;
    else if (inside) text += line + "\n";
  }
  return text;
}

TEST(ManPage, RunKeys) {
  RunConfig c;
  expect_same(page_keys("megaslide-config.5.scd", [](const std::string& s) { return s != "MACHINE FILES"; }), run_schema(c));
}

TEST(ManPage, MachineKeys) {
  MachineConfig c;
  expect_same(page_keys("megaslide-config.5.scd", [](const std::string& s) { return s == "MACHINE FILES"; }), machine_schema(c));
}

TEST(ManPage, ModelKeys) {
  ModelConfig c;
  expect_same(page_keys("megaslide-model.5.scd", [](const std::string& s) { return s == "MODEL FILES"; }), model_schema(c));
}

TEST(ManPage, ExamplesAreRead) {
  const RunConfig run = parse_run_config(example_of("megaslide-config.5.scd"), "example");
  EXPECT_EQ(run.stream.link_bandwidth, 2e9);
  EXPECT_NO_THROW(require_for_training(run));
  EXPECT_NO_THROW(reject_unsupported(run));
  EXPECT_EQ(parse_model_config(example_of("megaslide-model.5.scd"), "example").dim, 96);
}

}  // namespace
}  // namespace megaslide
