// The fast population of a Maglev table: the same bytes as the textbook loop (tables/maglev.h has
// the rule, tests/tables/textbook_maglev.h the loop), found in less time.
//
// Where the textbook loop spends its time, and what is done instead:
//   - one mispredicted branch per claimed slot. Here a contender looks at 16 to 64 of its next
//     positions at once, without branches, and keeps those that are free as a bit mask; its next
//     turns take from there. A slot once taken stays taken, so a stale bit only costs a second
//     look, and a clear bit is never wrong: the result is exact.
//   - waiting for the cache. Occupancy is one bit a slot. Contenders of the next turns look ahead
//     before any of them claims, so that no look waits for a claim's address.
//   - many probes for the last slots. In a contender's order slot e is at position
//     (e - offset) / skip, modulo the size, so its first free slot is a minimum over the list of
//     empty ones: see "The last slots" in the kernel.
//
// Each kernel is one source compiled for one instruction set; they differ in the lanes of a vector
// and in how a look asks which slots are free. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace maglev {

// The j-th slot that a contender prefers is (offset + j * skip) mod size.
struct Contender {
  uint32_t offset;  // below size
  uint32_t skip;    // from 1 to size - 1
  uint32_t weight;  // positive
};

class TurnOrder;
using FillFunction = void (*)(std::span<const Contender> contenders, std::span<uint32_t> slots,
                              TurnOrder& order);

struct FillKernel {
  std::string_view name;
  FillFunction fill;
};

// The kernels that this processor can run, the best first.
std::span<const FillKernel> fill_kernels();

// Writes to each slot the index of the contender that owns it, by the best kernel or the one named.
// The number of slots is a prime of tables/prime.h; at least one contender and no more than slots.
// Small tables, and those that few contenders share or very many, are filled by a plain loop
// instead.
void fill_slots(std::span<const Contender> contenders, std::span<uint32_t> slots);
void fill_slots(std::span<const Contender> contenders, std::span<uint32_t> slots,
                const FillKernel& kernel);

}  // namespace maglev
