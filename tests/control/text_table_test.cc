#include "control/text_table.h"

#include <gtest/gtest.h>

namespace maglev {
namespace {

TEST(TextTable, ColumnsAreAsWideAsTheirWidestCell) {
  TextTable table({{"NAME"}, {"COUNT", TextTable::Align::kRight}, {"STATE"}});
  table.add({"b1", "7", "ready"});
  table.add({"backend2", "123456", "drain"});
  EXPECT_EQ(table.text(),
            "NAME       COUNT  STATE\n"
            "b1             7  ready\n"
            "backend2  123456  drain\n");
}

TEST(TextTable, LongNamesGiveWaySoThatTheTableFitsTheTerminal) {
  TextTable table({{"NAME"}, {"OTHER"}});
  table.add({std::string(50, 'n') + std::string(50, 'm'), std::string(40, 'x')});
  EXPECT_EQ(table.text(), "NAME" + std::string(36, ' ') + "OTHER\n" + std::string(18, 'n') + ".." +
                              std::string(18, 'm') + "  " + std::string(40, 'x') + "\n");
}

TEST(TextTable, AnEmptyTableIsItsTitle) {
  EXPECT_EQ(TextTable({{"NAME"}, {"OTHER"}}).text(), "NAME  OTHER\n");
}

}  // namespace
}  // namespace maglev
