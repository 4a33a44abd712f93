// A memory resource over DPDK's heap of hugepages on one NUMA node. Main thread only.
#pragma once

#include <cstddef>
#include <memory_resource>

namespace maglev {

class HugepageMemory : public std::pmr::memory_resource {
 public:
  explicit HugepageMemory(int numa_node) : numa_node_(numa_node) {}

 private:
  void* do_allocate(size_t bytes, size_t alignment) override;  // throws std::bad_alloc
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  int numa_node_;
};

}  // namespace maglev
