// A flow table in memory of its own, for what is no dataplane: the replay of captures, and tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dataplane/flow_table.h"

namespace maglev {

class HeapFlowTable {
 public:
  explicit HeapFlowTable(uint64_t entries)
      : pairs_(std::make_unique<Pair[]>(FlowTable::bytes_for(entries) / sizeof(Pair))),
        table_({reinterpret_cast<std::byte*>(pairs_.get()), FlowTable::bytes_for(entries)}) {}

  FlowTable& table() { return table_; }

 private:
  struct alignas(128) Pair {
    std::byte bytes[128];
  };
  std::unique_ptr<Pair[]> pairs_;
  FlowTable table_;
};

}  // namespace maglev
