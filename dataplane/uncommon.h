// Every packet that the pipeline cannot read by fixed offsets: tags, options, extension headers,
// fragments, ICMP, and what is wrong with a packet; and what is done with packets that cannot go on
// as they are. Called by the pipeline's stages, on the worker's thread; the same rules as there.
#pragma once

#include "dataplane/burst.h"

namespace maglev {

// The VIP and hash of packet i, or the verdict that ends its way: all that parse and classify do
// for a plain packet.
void classify_uncommon(Burst& b, uint32_t i, const Snapshot& snapshot, PathState& state);

// Packet i has no hop left or is too big: an answer to the sender, or the packet cut to size and
// its parts sent.
void deliver_otherwise(Burst& b, uint32_t i, PathState& state);

// Finishes a TCP or UDP checksum that the sending kernel left to hardware, which then holds the sum
// of the pseudo-header alone (CHECKSUM_PARTIAL in Linux).
void complete_checksum(uint8_t* frame, uint32_t length);

}  // namespace maglev
