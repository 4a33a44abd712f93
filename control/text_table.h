// Columns of text for a terminal. Pure, one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace maglev {

inline constexpr size_t kTerminalColumns = 80;

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns);

  // One cell per column.
  void add(std::vector<std::string> cells);

  // Title line and rows, each ended by a newline. Where they would be wider than the terminal, the
  // first column (of names) gives way: what does not fit is cut from its middle, with ".." in its
  // place.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace maglev
