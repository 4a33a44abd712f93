// Durable state: what was set by socket, the generation, the numbering of backends, the histories
// of pools' slots and the last health verdicts, in an SQLite database of one directory.
//
// Thread: one at a time. Ownership: holds the database for itself while it lives.
// Invariants:
// 1. When a save returns success, its content survives the death of the process at any instant;
//    when it returns an error, nothing of it is there. Overrides survive the loss of power too.
//    What a publication saves needs not: all that it must outlive (the published files, the
//    dataplane and its flow tables) is gone with the power as well. That spares each change a wait
//    for the disk.
// 2. A damaged database never prevents a start: it is set aside beside the new one and told.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "control/model.h"
#include "control/plan.h"

struct sqlite3;

namespace maglev {

// The verdict of a check, remembered with what was checked, so that it never speaks for another.
struct RememberedVerdict {
  std::string pool;
  std::string backend;
  std::string target;                               // "198.18.2.11:80"
  HealthVerdict verdict = HealthVerdict::kUnknown;  // kUnknown: nothing to remember
  bool operator==(const RememberedVerdict&) const = default;
};

struct RememberedState {
  uint64_t generation = 0;  // the largest ever published
  Overrides overrides;
  ByName<Numbering> numberings;              // by pool
  ByName<std::vector<std::byte>> histories;  // likewise: images that pass check_history_file()
  std::vector<RememberedVerdict> verdicts;
};

class State {
 public:
  // Opens or makes the database and reads it. Fails with a sentence where the directory cannot be
  // used or another process has the database open. A row that cannot be understood is told in the
  // log and left out.
  struct Opened {
    std::unique_ptr<State> state;
    RememberedState remembered;
  };
  static std::expected<Opened, std::string> open(const std::string& directory);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::expected<void, std::string> save_overrides(const Overrides& changes);

  // What a publication needs remembered before it becomes visible.
  struct Publication {
    uint64_t generation = 0;
    std::map<std::string, const Numbering*> numberings;       // changed ones, by pool; null: gone
    std::map<std::string, std::vector<std::byte>> histories;  // likewise; empty: gone
    std::vector<RememberedVerdict> verdicts;                  // changed ones
  };
  std::expected<void, std::string> save_publication(const Publication& publication);

 private:
  explicit State(sqlite3* database) : database_(database) {}

  sqlite3* database_;
};

}  // namespace maglev
