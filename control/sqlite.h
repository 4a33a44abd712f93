// A thin cover over SQLite's C interface: errors are thrown as SqliteError, statements finalize
// themselves. Used by state.cc alone. Thread: as the connection is used, one at a time.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace maglev {

class SqliteError : public std::runtime_error {
 public:
  explicit SqliteError(sqlite3* database)
      : std::runtime_error(sqlite3_errmsg(database)), code_(sqlite3_errcode(database) & 0xff) {}
  SqliteError(int code, const std::string& why) : std::runtime_error(why), code_(code) {}
  int code() const { return code_; }  // a primary result code, such as SQLITE_CORRUPT

 private:
  int code_;
};

inline void run_sql(sqlite3* database, const char* sql) {
  if (sqlite3_exec(database, sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    throw SqliteError(database);
  }
}

class Statement {
 public:
  Statement(sqlite3* database, std::string_view sql) : database_(database) {
    check(sqlite3_prepare_v2(database, sql.data(), static_cast<int>(sql.size()), &statement_,
                             nullptr));
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int64_t value) {
    check(sqlite3_bind_int64(statement_, ++bound_, value));
    return *this;
  }
  Statement& bind(const std::string& value) {
    check(sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                            SQLITE_TRANSIENT));
    return *this;
  }
  Statement& bind(std::span<const std::byte> value) {
    check(sqlite3_bind_blob64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT));
    return *this;
  }

  bool next_row() {
    const int result = sqlite3_step(statement_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) throw SqliteError(database_);
    return result == SQLITE_ROW;
  }
  // For a statement without rows; it may be bound and run again.
  void run() {
    while (next_row()) {
    }
    check(sqlite3_reset(statement_));
    bound_ = 0;
  }

  int64_t number(int column) { return sqlite3_column_int64(statement_, column); }
  std::string text(int column) {
    const auto value = blob(column);
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }
  std::vector<std::byte> bytes(int column) {
    const auto value = blob(column);
    return {value.begin(), value.end()};
  }

 private:
  void check(int result) {
    if (result != SQLITE_OK) throw SqliteError(database_);
  }
  std::span<const std::byte> blob(int column) {
    const auto* bytes = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
    return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

  sqlite3* database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

// Rolled back unless committed.
class Transaction {
 public:
  explicit Transaction(sqlite3* database) : database_(database) {
    run_sql(database, "BEGIN IMMEDIATE");
  }
  ~Transaction() {
    if (!committed_) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    run_sql(database_, "COMMIT");
    committed_ = true;
  }

 private:
  sqlite3* database_;
  bool committed_ = false;
};

}  // namespace maglev
