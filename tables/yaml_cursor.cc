#include "tables/yaml_cursor.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

namespace maglev {

struct YamlCursor::Document {
  std::string file_name;
  std::vector<std::string>* errors;
};

namespace {

std::string describe(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  return fmt::format("'{}'", node.Scalar());
}

// Quotes make text of a number or a truth value.
bool is_plain(const YAML::Node& node) {
  return node.IsScalar() && node.Tag() != "!";
}

std::string place_of(const std::string& file_name, const YAML::Mark& mark) {
  if (mark.is_null()) return file_name;
  return fmt::format("{}:{}:{}", file_name, mark.line + 1, mark.column + 1);
}

}  // namespace

YamlCursor::YamlCursor(std::shared_ptr<Document> document, const YAML::Node& node, std::string path)
    : document_(std::move(document)),
      node_(std::make_unique<YAML::Node>(node)),
      path_(std::move(path)) {}
YamlCursor::~YamlCursor() = default;
YamlCursor::YamlCursor(const YamlCursor& other)
    : YamlCursor(other.document_, *other.node_, other.path_) {}

YamlCursor YamlCursor::parse(std::string_view text, std::string file_name,
                             std::vector<std::string>& errors) {
  auto document = std::make_shared<Document>(std::move(file_name), &errors);
  try {
    const std::vector<YAML::Node> all = YAML::LoadAll(std::string(text));
    YamlCursor cursor(document, all.empty() ? YAML::Node() : all.front(), "");
    if (all.size() > 1) {
      YamlCursor(document, all[1], "").fail("a second document begins: expected one in all");
    }
    if (!cursor.node_->IsMap()) {
      cursor.fail(fmt::format("expected a map of settings, found {}", describe(*cursor.node_)));
    }
    return cursor;
  } catch (const YAML::DeepRecursion& e) {
    errors.push_back(place_of(document->file_name, e.mark) +
                     ": lists and maps are nested too deep");
  } catch (const YAML::ParserException& e) {
    errors.push_back(fmt::format("{}: {}", place_of(document->file_name, e.mark), e.msg));
  }
  return YamlCursor(document, YAML::Node(YAML::NodeType::Undefined), "");
}

YamlCursor YamlCursor::parse_file(std::string_view text, std::string file_name,
                                  std::vector<std::string>& errors) {
  const auto end = [&] {
    const size_t column = text.size() - (text.rfind('\n') + 1) + 1;
    return fmt::format("{}:{}:{}", file_name, 1 + std::ranges::count(text, '\n'), column);
  };
  if (!text.empty() && text.back() != '\n') {
    errors.push_back(end() + ": the last line has no end: is the file cut short?");
  } else if (text.starts_with("---\n") && !text.ends_with("\n...\n")) {
    errors.push_back(end() +
                     ": expected a last line '...', as the first is '---': is the file cut "
                     "short?");
  }
  return parse(text, std::move(file_name), errors);
}

bool YamlCursor::exists() const {
  return node_->IsDefined() && !node_->IsNull();
}

std::string YamlCursor::place() const {
  return place_of(document_->file_name, node_->Mark());
}

void YamlCursor::fail(std::string_view message) const {
  const std::string where = path_.empty() ? "" : path_ + ": ";
  document_->errors->push_back(fmt::format("{}: {}{}", place(), where, message));
}

YamlCursor YamlCursor::optional(std::string_view key) const {
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  if (!node_->IsMap()) return {document_, YAML::Node(YAML::NodeType::Undefined), path};
  const YAML::Node& node = *node_;
  const YAML::Node child = node[std::string(key)];
  return {document_, child.IsDefined() ? child : YAML::Node(YAML::NodeType::Undefined), path};
}

YamlCursor YamlCursor::required(std::string_view key) const {
  YamlCursor child = optional(key);
  if (!child.exists() && exists()) fail(fmt::format("'{}' is missing", key));
  return child;
}

void YamlCursor::only_keys(const std::vector<std::string_view>& keys) const {
  if (!exists()) return;
  if (!node_->IsMap()) {
    fail(fmt::format("expected a map with {}, found {}", fmt::join(keys, ", "), describe(*node_)));
    return;
  }
  std::vector<std::string> seen;
  for (const auto& entry : *node_) {
    const YamlCursor key(document_, entry.first, path_);
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : describe(entry.first);
    if (std::ranges::find(keys, name) == keys.end()) {
      key.fail(
          fmt::format("unknown setting '{}': expected one of {}", name, fmt::join(keys, ", ")));
    } else if (std::ranges::find(seen, name) != seen.end()) {
      key.fail(fmt::format("'{}' is given twice", name));
    }
    seen.push_back(name);
  }
}

std::vector<YamlCursor> YamlCursor::elements() const {
  std::vector<YamlCursor> list;
  if (!exists()) return list;
  if (!node_->IsSequence()) {
    fail(fmt::format("expected a list, found {}", describe(*node_)));
    return list;
  }
  for (const auto& element : *node_) {
    list.push_back({document_, element, fmt::format("{}[{}]", path_, list.size())});
  }
  return list;
}

std::string YamlCursor::text(std::string_view fallback) const {
  if (!exists()) return std::string(fallback);
  if (!node_->IsScalar()) {
    fail(fmt::format("expected text, found {}", describe(*node_)));
    return std::string(fallback);
  }
  return node_->Scalar();
}

uint64_t YamlCursor::integer(uint64_t min, uint64_t max, uint64_t fallback) const {
  if (!exists()) return fallback;
  uint64_t value = 0;
  if (is_plain(*node_)) {
    const std::string& scalar = node_->Scalar();
    const char* end = scalar.data() + scalar.size();
    const auto [stop, error] = std::from_chars(scalar.data(), end, value);
    if (error == std::errc() && stop == end && value >= min && value <= max) return value;
  }
  fail(fmt::format("expected a whole number from {} to {}, found {}", min, max, describe(*node_)));
  return fallback;
}

bool YamlCursor::boolean(bool fallback) const {
  if (!exists()) return fallback;
  if (is_plain(*node_) && node_->Scalar() == "true") return true;
  if (is_plain(*node_) && node_->Scalar() == "false") return false;
  fail(fmt::format("expected true or false, found {}", describe(*node_)));
  return fallback;
}

}  // namespace maglev
