#include <algorithm>
#include <array>
#include <filesystem>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "experiment.h"
#include "io/json.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array kOrder{"memory", "throughput", "codecs", "precision", "quality", "motion"};

size_t place_of(const std::string& target) {
  return static_cast<size_t>(std::ranges::find(kOrder, target) - kOrder.begin());
}

template <size_t N>
size_t choice(const json& from, const std::array<const char*, N>& names) {
  const auto& word = from.get_ref<const std::string&>();
  const auto found = std::ranges::find(names, word);
  if (found == names.end()) throw Error(fmt::format("\"{}\" is none of {}", word, fmt::join(names, ", ")));
  return static_cast<size_t>(found - names.begin());
}

ResultRow read_row(const json& j) {
  constexpr std::array kEvidence{"measured", "simulated", "derived"};
  return {j.at("id"), j.at("command"), j.value("date", ""), static_cast<Evidence>(choice(j.at("kind"), kEvidence)), j.at("values")};
}

ResultTable read_table(const json& j) {
  ResultTable table{j.at("title"), j.at("columns"), j.at("rows")};
  for (const auto& row : table.rows)
    if (row.size() != table.columns.size())
      throw Error(fmt::format("table \"{}\": a row of {} cells under {} columns", table.title, row.size(), table.columns.size()));
  return table;
}

ExperimentResult read_result(const json& j, const std::string& folder) {
  ExperimentResult r{j.at("target"), j.at("title"), j.at("date"), j.at("machine"), j.at("version"), j.at("quick"), j.at("seconds"),
                     j.value("text", std::vector<std::string>{}), {}, j.value("charts", json::array()), {}, {}};
  for (const json& row : j.at("rows")) r.rows.push_back(read_row(row));
  for (const json& table : j.value("tables", json::array())) r.tables.push_back(read_table(table));
  for (const json& p : j.value("pictures", json::array())) {
    ResultPicture picture{p.at("file"), p.at("caption")};
    // Rows that were restored from the tree come without their samples.
    if (fs::exists(folder + "/" + picture.file)) r.pictures.push_back(std::move(picture));
    else ++r.pictures_left_out;
  }
  return r;
}

// "TARGET/ROW.ID/json/pointer"
Finding read_finding(const json& j) {
  const std::string& from = j.at("from").get_ref<const std::string&>();
  const size_t a = from.find('/'), b = a == std::string::npos ? a : from.find('/', a + 1);
  if (b == std::string::npos) throw Error(fmt::format("\"{}\" is not TARGET/ROW/VALUE", from));
  return {j.value("label", ""), from.substr(0, a), from.substr(a + 1, b - a - 1), from.substr(b), j.at("unit")};
}

Claim read_claim(const json& j) {
  constexpr std::array kRelations{"at most", "at least", "about"};
  Claim c{j.at("id"), j.at("claim"), j.at("paper"), j.at("quoted_in"), j.value("note", ""), {}, Relation::kAbout, j.value("tolerance", 0.0), {}, {}};
  if (j.contains("value")) c.value = j.at("value").get<double>();
  c.relation = static_cast<Relation>(choice(j.at("relation"), kRelations));
  for (const json& f : j.at("ours")) c.findings.push_back(read_finding(f));
  if (c.findings.empty()) throw Error(fmt::format("claim {}: nothing of ours", c.id));
  if (j.contains("bound")) c.bound = read_finding(j.at("bound"));
  return c;
}

template <class Read>
auto read_document(const std::string& path, const Read& read) {
  try {
    return read(read_json(path));
  } catch (const json::exception& e) {
    throw Error(fmt::format("{}: {}", path, e.what()), "make the target again, or mend the file");
  } catch (Error& e) {
    throw e.add_context(path);
  }
}

}  // namespace

const ResultRow* ExperimentResult::find(const std::string& id) const {
  const auto found = std::ranges::find(rows, id, &ResultRow::id);
  return found == rows.end() ? nullptr : &*found;
}

std::vector<ExperimentResult> read_results(const std::string& folder) {
  std::vector<ExperimentResult> results;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (entry.is_regular_file() && entry.path().extension() == ".json") results.push_back(read_document(entry.path().string(), [&](const json& j) { return read_result(j, folder); }));
  if (results.empty()) throw Error(folder + ": no TARGET.json", "make -C configs/experiments memory, or another target");
  std::ranges::sort(results, {}, [](const ExperimentResult& r) { return std::tuple(place_of(r.target), r.target); });
  return results;
}

std::vector<Claim> read_claims(const std::string& path) {
  return read_document(path, [](const json& all) {
    std::vector<Claim> claims;
    for (const json& j : all.at("claims")) claims.push_back(read_claim(j));
    return claims;
  });
}

}  // namespace megaslide
