#include "control/state.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "control/files.h"
#include "control/json_form.h"
#include "control/sqlite.h"
#include "tables/history.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;
using Kind = OverrideKey::Kind;

constexpr std::string_view kDatabaseName = "control.db";

// Exclusive locking keeps a second process out and spares the shared-memory file.
constexpr const char* kSetUp = R"(
  PRAGMA locking_mode = EXCLUSIVE;
  PRAGMA journal_mode = WAL;
  CREATE TABLE IF NOT EXISTS generation(
    only INTEGER PRIMARY KEY CHECK (only = 1), value INTEGER NOT NULL);
  CREATE TABLE IF NOT EXISTS overrides(
    kind INTEGER, pool TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (kind, pool, name));
  CREATE TABLE IF NOT EXISTS places(
    pool TEXT, place INTEGER, name TEXT NOT NULL, incarnation INTEGER NOT NULL,
    PRIMARY KEY (pool, place));
  CREATE TABLE IF NOT EXISTS leaving(
    pool TEXT, place INTEGER, name TEXT NOT NULL, left_in INTEGER NOT NULL,
    PRIMARY KEY (pool, place));
  CREATE TABLE IF NOT EXISTS histories(
    pool TEXT PRIMARY KEY, image BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS verdicts(
    pool TEXT, backend TEXT, target TEXT NOT NULL, up INTEGER NOT NULL,
    PRIMARY KEY (pool, backend));
)";

struct Storer {
  const std::string& name;
  std::string operator()(const Forgotten&) const { return {}; }
  std::string operator()(const Removed&) const { return {}; }
  std::string operator()(const BackendPatch& patch) const { return to_json(patch).dump(); }
  std::string operator()(const auto& definition) const { return to_json(name, definition).dump(); }
};

// What an override's value is stored as. Empty text: removed.
std::string store_value(const Override& change) {
  return std::visit(Storer{change.key.name}, change.value);
}

std::expected<OverrideValue, std::string> restore_value(Kind kind, const std::string& stored) {
  if (stored.empty()) return Removed{};
  std::vector<std::string> errors;
  const YamlCursor cursor = YamlCursor::parse(stored, "stored", errors);
  OverrideValue value;
  switch (kind) {
    case Kind::kPool:
      value = by_socket(read_pool(cursor).second.settings);
      break;
    case Kind::kBackend:
      if (cursor.optional("address").exists()) {
        value = by_socket(read_backend(cursor).second);
      } else {
        value = read_backend_patch(cursor);
      }
      break;
    case Kind::kVip:
      value = by_socket(read_vip(cursor).second);
      break;
    default:
      return std::unexpected("unknown kind");
  }
  if (!errors.empty()) return std::unexpected(errors.front());
  return value;
}

std::string stored_key(const OverrideKey& key) {
  return key.pool.empty() ? key.name : fmt::format("{}/{}", key.pool, key.name);
}

// Places of backends gone are there as free ones too, with their names apart.
ByName<Numbering> load_numberings(sqlite3* database) {
  std::map<std::string, std::vector<Numbering::Place>> places;
  Statement place(database, "SELECT pool, place, name, incarnation FROM places");
  while (place.next_row()) {
    const auto index = static_cast<uint64_t>(place.number(1));
    if (index >= kMaxBackends) continue;
    auto& list = places[place.text(0)];
    list.resize(std::max<size_t>(list.size(), index + 1));
    list[index] = {place.text(2), static_cast<uint8_t>(place.number(3))};
  }
  Statement left(database, "SELECT pool, place, name, left_in FROM leaving");
  while (left.next_row()) {
    auto& list = places[left.text(0)];
    const auto index = static_cast<uint64_t>(left.number(1));
    if (index >= list.size() || !list[index].name.empty()) continue;
    list[index].name = left.text(2);
    list[index].left_in = static_cast<uint64_t>(left.number(3));
  }
  ByName<Numbering> numberings;
  for (auto& [pool, list] : places) numberings.emplace(pool, Numbering(std::move(list)));
  return numberings;
}

ByName<std::vector<std::byte>> load_histories(sqlite3* database) {
  ByName<std::vector<std::byte>> histories;
  Statement history(database, "SELECT pool, image FROM histories");
  while (history.next_row()) {
    std::vector<std::byte> image = history.bytes(1);
    if (const auto view = check_history_file(image); view) {
      histories.emplace(history.text(0), std::move(image));
    } else {
      spdlog::error(
          "what was remembered of the slots of pool {} cannot be understood and is left out: {}",
          history.text(0), view.error());
    }
  }
  return histories;
}

RememberedState load(sqlite3* database) {
  RememberedState state;
  Statement generation(database, "SELECT value FROM generation");
  if (generation.next_row()) state.generation = static_cast<uint64_t>(generation.number(0));

  Statement overrides(database, "SELECT kind, pool, name, value FROM overrides");
  while (overrides.next_row()) {
    OverrideKey key{static_cast<Kind>(overrides.number(0)), overrides.text(1), overrides.text(2)};
    if (auto value = restore_value(key.kind, overrides.text(3))) {
      state.overrides.push_back({std::move(key), std::move(*value)});
    } else {
      spdlog::error("what was remembered of {} cannot be understood and is left out: {}",
                    stored_key(key), value.error());
    }
  }

  state.numberings = load_numberings(database);
  state.histories = load_histories(database);
  Statement verdicts(database, "SELECT pool, backend, target, up FROM verdicts");
  while (verdicts.next_row()) {
    const auto verdict = verdicts.number(3) != 0 ? HealthVerdict::kUp : HealthVerdict::kDown;
    state.verdicts.push_back({verdicts.text(0), verdicts.text(1), verdicts.text(2), verdict});
  }
  return state;
}

void save_numberings(sqlite3* database, const std::map<std::string, const Numbering*>& numberings) {
  Statement forget_places(database, "DELETE FROM places WHERE pool = ?");
  Statement forget_leaving(database, "DELETE FROM leaving WHERE pool = ?");
  Statement put_place(database, "INSERT INTO places VALUES (?, ?, ?, ?)");
  Statement put_leaving(database, "INSERT INTO leaving VALUES (?, ?, ?, ?)");
  for (const auto& [pool, numbering] : numberings) {
    forget_places.bind(pool).run();
    forget_leaving.bind(pool).run();
    if (numbering == nullptr) continue;
    int64_t index = 0;
    for (const Numbering::Place& place : numbering->places()) {
      const std::string name = place.lives() ? place.name : "";
      put_place.bind(pool).bind(index).bind(name).bind(place.incarnation).run();
      if (place.left_in != 0) {
        const auto left_in = static_cast<int64_t>(place.left_in);
        put_leaving.bind(pool).bind(index).bind(place.name).bind(left_in).run();
      }
      ++index;
    }
  }
}

void save_histories(sqlite3* database,
                    const std::map<std::string, std::vector<std::byte>>& histories) {
  Statement put(database, "INSERT OR REPLACE INTO histories VALUES (?, ?)");
  Statement forget(database, "DELETE FROM histories WHERE pool = ?");
  for (const auto& [pool, image] : histories) {
    if (image.empty()) {
      forget.bind(pool).run();
    } else {
      put.bind(pool).bind(image).run();
    }
  }
}

struct Close {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, Close>;

// Throws SqliteError, whose code tells a damaged database from one that cannot be reached.
Database open_database(const std::string& path) {
  sqlite3* raw = nullptr;
  const int opened = sqlite3_open(path.c_str(), &raw);
  Database database(raw);
  if (opened != SQLITE_OK) throw SqliteError(raw);
  run_sql(raw, kSetUp);
  Statement check(raw, "PRAGMA quick_check(1)");
  if (check.next_row() && check.text(0) != "ok") throw SqliteError(SQLITE_CORRUPT, check.text(0));
  return database;
}

// Whether setting the database aside and starting a new one is the way on: its content is at fault,
// not the disk, the directory's rights or another process.
bool is_damage(const SqliteError& error) {
  return error.code() == SQLITE_CORRUPT || error.code() == SQLITE_NOTADB ||
         error.code() == SQLITE_ERROR || error.code() == SQLITE_MISMATCH;
}

void set_aside(const std::string& path, std::string_view why) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const std::string aside = fmt::format("{}.damaged-{}", path, now.time_since_epoch().count());
  spdlog::error(
      "the durable state {} is damaged ({}); it is set aside as {}: what was set by socket is "
      "lost, "
      "the configuration file counts alone",
      path, why, aside);
  std::error_code ignored;
  for (const char* suffix : {"", "-wal", "-journal"}) {
    fs::rename(path + suffix, aside + suffix, ignored);
  }
}

std::string describe(const SqliteError& error, const std::string& path) {
  if (error.code() == SQLITE_BUSY || error.code() == SQLITE_LOCKED) {
    return fmt::format(
        "another process has {} open: is a maglev-control running with this state "
        "directory?",
        path);
  }
  return fmt::format("cannot use {}: {}", path, error.what());
}

}  // namespace

std::expected<State::Opened, std::string> State::open(const std::string& directory) {
  if (const auto made = make_directory(directory); !made) return std::unexpected(made.error());
  const std::string path = fmt::format("{}/{}", directory, kDatabaseName);
  for (bool is_second_try = false;; is_second_try = true) {
    try {
      Database database = open_database(path);
      RememberedState remembered = load(database.get());
      return Opened{std::unique_ptr<State>(new State(database.release())), std::move(remembered)};
    } catch (const SqliteError& error) {
      if (!is_damage(error) || is_second_try) return std::unexpected(describe(error, path));
      set_aside(path, error.what());
    }
  }
}

State::~State() {
  sqlite3_close_v2(database_);
}

std::expected<void, std::string> State::save_overrides(const Overrides& changes) {
  try {
    run_sql(database_, "PRAGMA synchronous = FULL");
    Transaction transaction(database_);
    Statement put(database_, "INSERT OR REPLACE INTO overrides VALUES (?, ?, ?, ?)");
    Statement forget(database_, "DELETE FROM overrides WHERE kind = ? AND pool = ? AND name = ?");
    Statement forget_backends(database_, "DELETE FROM overrides WHERE kind = ? AND pool = ?");
    for (const Override& change : changes) {
      const OverrideKey& key = change.key;
      const auto kind = static_cast<int64_t>(key.kind);
      if (key.kind == Kind::kPool) {
        forget_backends.bind(static_cast<int64_t>(Kind::kBackend)).bind(key.name).run();
      }
      if (std::holds_alternative<Forgotten>(change.value)) {
        forget.bind(kind).bind(key.pool).bind(key.name).run();
      } else {
        put.bind(kind).bind(key.pool).bind(key.name).bind(store_value(change)).run();
      }
    }
    transaction.commit();
    return {};
  } catch (const SqliteError& error) {
    return std::unexpected(fmt::format("cannot save the change: {}", error.what()));
  }
}

std::expected<void, std::string> State::save_publication(const Publication& publication) {
  try {
    run_sql(database_, "PRAGMA synchronous = NORMAL");
    Transaction transaction(database_);
    Statement(database_, "INSERT OR REPLACE INTO generation VALUES (1, ?)")
        .bind(static_cast<int64_t>(publication.generation))
        .run();
    save_numberings(database_, publication.numberings);
    save_histories(database_, publication.histories);
    Statement put_verdict(database_, "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)");
    Statement forget_verdict(database_, "DELETE FROM verdicts WHERE pool = ? AND backend = ?");
    for (const RememberedVerdict& known : publication.verdicts) {
      if (known.verdict == HealthVerdict::kUnknown) {
        forget_verdict.bind(known.pool).bind(known.backend).run();
      } else {
        put_verdict.bind(known.pool).bind(known.backend).bind(known.target);
        put_verdict.bind(known.verdict == HealthVerdict::kUp).run();
      }
    }
    transaction.commit();
    return {};
  } catch (const SqliteError& error) {
    return std::unexpected(fmt::format("cannot save the publication: {}", error.what()));
  }
}

}  // namespace maglev
