// Reads a YAML document so that every mistake is told with its place: FILE:LINE:COLUMN, what was
// expected and what was found. Mistakes are collected, so one run shows them all, and nothing is
// applied unless there is none. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace YAML {
class Node;
}

namespace maglev {

class YamlCursor {
 public:
  // Parses text; file_name only appears in messages. A syntax error is a mistake like any other.
  // The mistakes go to `errors`, which must outlive the cursor and all made from it.
  static YamlCursor parse(std::string_view text, std::string file_name,
                          std::vector<std::string>& errors);
  // Of a file: also finds that it was cut short, which may leave valid text that says something
  // else ("port: 80" cut to "port: 8"). The last line ends with a newline; and where the first is
  // '---', the last is '...', so that no cut goes unseen.
  static YamlCursor parse_file(std::string_view text, std::string file_name,
                               std::vector<std::string>& errors);

  ~YamlCursor();
  YamlCursor(const YamlCursor&);
  YamlCursor& operator=(const YamlCursor&) = delete;

  bool exists() const;

  // Entries of a map. A missing required entry, or a key outside those listed in only_keys(), is a
  // mistake. On a missing entry the cursor returned does not exist().
  YamlCursor optional(std::string_view key) const;
  YamlCursor required(std::string_view key) const;
  void only_keys(const std::vector<std::string_view>& keys) const;

  // Elements of a list; empty (and a mistake) for anything else; empty for what does not exist.
  std::vector<YamlCursor> elements() const;

  // Scalars. For what does not exist: the fallback, silently. For what is not of the type or not in
  // range: the fallback and a mistake.
  std::string text(std::string_view fallback = {}) const;
  uint64_t integer(uint64_t min, uint64_t max, uint64_t fallback) const;
  bool boolean(bool fallback) const;

  // Notes a mistake at this place: "FILE:LINE:COLUMN: message".
  void fail(std::string_view message) const;
  std::string place() const;  // FILE:LINE:COLUMN

 private:
  struct Document;
  YamlCursor(std::shared_ptr<Document> document, const YAML::Node& node, std::string path);

  std::shared_ptr<Document> document_;
  std::unique_ptr<YAML::Node> node_;  // undefined node: does not exist
  std::string path_;                  // for messages: pools[0].backends[2].weight
};

}  // namespace maglev
