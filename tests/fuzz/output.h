// What must hold of every frame that leaves a host, checked without the code that wrote it. Each
// function ends the program where it does not hold (require.h). Pure, any thread.
#pragma once

#include <cstdint>
#include <span>

#include "dataplane/outbox.h"
#include "dataplane/outer_header.h"
#include "tables/published.h"

namespace maglev::fuzz {

using ByteView = std::span<const uint8_t>;

// Where a frame for a backend goes, from what was published.
struct Route {
  const VipRecord& vip;
  const BackendRecord& backend;
  const PortFacts& port;
};

// The IP packet in a received frame, as long as its header says; empty where there is none.
ByteView packet_in(ByteView frame);

// A frame to a backend: addresses, lengths, checksums, the MTU; and in it the packet that came,
// whole or its first part, one hop poorer.
void check_forwarded(ByteView frame, const Route& route, ByteView packet);

// Another part of a packet that was cut.
void check_further_part(ByteView frame, const Route& route, ByteView packet);

// An answer that goes back to where a packet came from.
void check_answer(ByteView frame, Origin origin);

}  // namespace maglev::fuzz
