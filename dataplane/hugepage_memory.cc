#include "dataplane/hugepage_memory.h"

#include <rte_malloc.h>

#include <algorithm>
#include <new>

namespace maglev {

void* HugepageMemory::do_allocate(size_t bytes, size_t alignment) {
  void* memory = rte_malloc_socket("maglev", std::max<size_t>(bytes, 1),
                                   static_cast<unsigned>(alignment), numa_node_);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void HugepageMemory::do_deallocate(void* memory, size_t, size_t) {
  rte_free(memory);
}

}  // namespace maglev
