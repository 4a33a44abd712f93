// The decapsulation program on frames that were right once: what it may do to any frame at all.
#include <random>

#include "tests/dataplane/bpf_decap_fixture.h"

namespace maglev {
namespace {

constexpr int kFrames = 40000;

class Fuzz : public DecapProgram {
 protected:
  size_t below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

  Bytes some_frame() {
    const Family out = kFamilies[below(2)];
    const Family in = kFamilies[below(2)];
    const auto traffic_class = [&] { return static_cast<uint8_t>(below(4)); };
    const Bytes packet = inner(in, traffic_class(), Bytes(below(200)));
    return ethernet(kTagStacks[below(kTagStacks.size())], ethertype_of(out),
                    wrap(kTunnels[below(std::size(kTunnels))], out, in, packet, traffic_class()));
  }

  // Mostly among the headers.
  void change_a_byte(Bytes& frame) {
    const size_t at = below(below(4) == 0 ? frame.size() : std::min<size_t>(frame.size(), 100));
    frame[at] = below(2) == 0 ? static_cast<uint8_t>(below(256))
                              : static_cast<uint8_t>(frame[at] ^ 1u << below(8));
  }

  void change_length(Bytes& frame) {
    const size_t shortest = 14;  // what BPF_PROG_TEST_RUN takes
    frame.resize(std::max(shortest, below(2) == 0 ? below(frame.size()) : frame.size() + below(9)));
  }

  // So that not everything ends at the first check.
  void repair_ipv4_checksum(Bytes& frame) {
    for (size_t link : {14, 18, 22}) {
      if (frame.size() < link + 20 || frame[link - 2] != 0x08 || frame[link - 1] != 0) continue;
      const size_t length = (frame[link] & 15u) * 4;
      if (length >= 20 && frame.size() >= link + length)
        set_ipv4_checksum(std::span(frame).subspan(link, length));
      return;
    }
  }

  Bytes mutated() {
    Bytes frame = some_frame();
    for (size_t changes = below(4); changes > 0; --changes)
      below(5) == 0 ? change_length(frame) : change_a_byte(frame);
    if (below(4) != 0) repair_ipv4_checksum(frame);
    return frame;
  }

  std::mt19937_64 random_{20240229};
};

// The link header but for its EtherType, and all behind the first twelve bytes of the inner header,
// where ECN and the IPv4 checksum are, are bytes of the input as they were.
void expect_inner_packet_of(const Bytes& in, const Bytes& out) {
  ASSERT_LE(out.size() + 20, in.size());
  size_t link = 14;
  while (in[link - 2] != 0x08 && in[link - 2] != 0x86) link += 4;
  ASSERT_GE(out.size(), link + 20);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + static_cast<ptrdiff_t>(link - 2), in.begin()));
  const bool is_ipv4 = out[link - 2] == 0x08;
  EXPECT_EQ(out[link] >> 4, is_ipv4 ? 4 : 6);
  EXPECT_TRUE(
      std::equal(out.begin() + static_cast<ptrdiff_t>(link + (is_ipv4 ? 12 : 2)), out.end(),
                 in.end() - static_cast<ptrdiff_t>(out.size() - link) + (is_ipv4 ? 12 : 2)));
}

TEST_F(Fuzz, EveryFrameIsUnwrappedPassedUntouchedOrDroppedForOneCountedCause) {
  std::vector<uint64_t> totals(kDecapCounters);
  uint64_t passed = 0;
  for (int i = 0; i < kFrames && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Bytes frame = mutated();
    const RunResult result = object_->run(frame);
    const auto counters = counted();
    uint64_t sum = 0;
    for (size_t c = 0; c < counters.size(); ++c) sum += counters[c], totals[c] += counters[c];
    if (result.verdict == XDP_DROP) {
      EXPECT_EQ(sum - counters[kDecapUnwrapped] - counters[kDecapRefusedSource], 1u);
      continue;
    }
    ASSERT_EQ(result.verdict, static_cast<uint32_t>(XDP_PASS));
    if (counters[kDecapUnwrapped] == 1) {
      EXPECT_EQ(sum, 1u);
      expect_inner_packet_of(frame, result.frame);
    } else {
      EXPECT_EQ(sum, counters[kDecapRefusedSource]);
      EXPECT_EQ(result.frame, frame);
      ++passed;
    }
  }
  for (uint64_t& total : totals) EXPECT_GT(total, 0u) << "counter " << &total - totals.data();
  EXPECT_GT(passed, totals[kDecapRefusedSource]);
}

}  // namespace
}  // namespace maglev
