#include "control/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace maglev {

namespace {

constexpr size_t kGap = 2;
constexpr size_t kNarrowestNames = 8;

// Names of one kind often differ only at their end.
std::string cut(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  const size_t tail = (width - 2) / 2;
  return text.substr(0, width - 2 - tail) + ".." + text.substr(text.size() - tail);
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  rows_.push_back(std::move(titles));
}

void TextTable::add(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const size_t others =
      std::accumulate(widths.begin() + 1, widths.end(), size_t{0}) + kGap * (widths.size() - 1);
  const size_t room = kTerminalColumns > others ? kTerminalColumns - others : 0;
  widths[0] = std::min(widths[0], std::max(room, kNarrowestNames));

  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = cut(row[i], widths[i]);
      if (i != 0) line.append(kGap, ' ');
      line += columns_[i].align == Align::kRight ? fmt::format("{:>{}}", cell, widths[i])
                                                 : fmt::format("{:<{}}", cell, widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace maglev
