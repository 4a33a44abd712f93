// The flow hash, the lookup and the whole pipeline on bytes, without a device.
//
// Times are per packet (items_per_second is packets per second). Flows are drawn once from a seeded
// generator; a frame is put back to its received form before each burst. bench/pipeline_alone.cc
// tells the stages apart.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "dataplane/pipeline.h"
#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;

std::vector<FlowKey4> random_keys(size_t count) {
  std::mt19937 random(7);
  std::vector<FlowKey4> keys(count);
  for (FlowKey4& key : keys) {
    key = {static_cast<uint32_t>(random()), address_be("198.51.100.10"),
           static_cast<uint16_t>(random()), __builtin_bswap16(80), kProtocolTcp};
  }
  return keys;
}

void FlowHashOfIpv4(benchmark::State& state) {
  const auto keys = random_keys(1024);
  uint64_t sum = 0;
  for (auto _ : state) {
    for (const FlowKey4& key : keys) sum += hash_flow(key, 42);
  }
  benchmark::DoNotOptimize(sum);
  state.SetItemsProcessed(state.iterations() * 1024);
}
BENCHMARK(FlowHashOfIpv4);

void FlowHashOfIpv6(benchmark::State& state) {
  std::mt19937 random(7);
  std::vector<FlowKey6> keys(1024);
  for (FlowKey6& key : keys) {
    for (uint8_t& b : key.source) b = static_cast<uint8_t>(random());
  }
  uint64_t sum = 0;
  for (auto _ : state) {
    for (const FlowKey6& key : keys) sum += hash_flow(key, 42);
  }
  benchmark::DoNotOptimize(sum);
  state.SetItemsProcessed(state.iterations() * 1024);
}
BENCHMARK(FlowHashOfIpv6);

// From the hash to the backend: one index into the table.
void LookupInATableOf65537Slots(benchmark::State& state) {
  TestBed bed;
  const auto snapshot = bed.adopt(make_tree(1, static_cast<uint32_t>(state.range(0)), 65537,
                                            {make_vip("web", "198.51.100.10", 80)}));
  std::vector<uint64_t> hashes;
  for (const FlowKey4& key : random_keys(65536)) hashes.push_back(hash_flow(key, 42));
  const VipEntry& vip = snapshot->vips()[0];
  for (auto _ : state) {
    for (uint64_t hash : hashes) {
      benchmark::DoNotOptimize(slot_word(vip.slot_bytes, slot_address(vip, hash)));
    };
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(hashes.size()));
}
BENCHMARK(LookupInATableOf65537Slots)->ArgName("backends")->Arg(10)->Arg(1000);

// A buffer as a device would fill it: headroom, then a frame of 64 bytes.
struct Buffer {
  static constexpr uint32_t kHeadroom = 128;
  static constexpr uint32_t kFrameLength = 60;  // 64 with the frame check sequence
  alignas(64) uint8_t bytes[kHeadroom + 128];
};

class Pipeline : public benchmark::Fixture {
 public:
  void SetUp(benchmark::State& state) override {
    const auto flows = static_cast<size_t>(state.range(0));
    snapshot_ = bed_.adopt(make_tree(1, static_cast<uint32_t>(state.range(1)), 65537,
                                     {make_vip("web", "198.51.100.10", 80)}));
    std::mt19937 random(7);
    frames_.resize(flows);
    next_ = 0;
    for (Buffer& buffer : frames_) {
      Bytes frame =
          make_frame({.source_port = static_cast<uint16_t>(random()), .payload_bytes = 6});
      const auto source = static_cast<uint32_t>(random());
      std::memcpy(frame.data() + kEthernetHeaderLength + kIpv4SourceOffset, &source, 4);
      frame.resize(Buffer::kFrameLength);
      std::ranges::copy(frame, buffer.bytes + Buffer::kHeadroom);
    }
  }
  void TearDown(benchmark::State&) override { frames_.clear(); }

  void receive() {
    burst_.count = kMaxBurst;
    for (uint32_t i = 0; i < kMaxBurst; ++i) {
      uint8_t* frame = frames_[next_].bytes + Buffer::kHeadroom;
      store_be16(frame + kEtherTypeOffset, kEtherTypeIpv4);  // the outer header lies over it
      frame[kEthernetHeaderLength + kIpv4TtlOffset] = 64;
      burst_.frame[i] = frame;
      burst_.length[i] = Buffer::kFrameLength;
      burst_.verdict[i] = Verdict::kForwarded;
      if (++next_ == frames_.size()) next_ = 0;
    }
  }

 protected:
  TestBed bed_;
  std::shared_ptr<const Snapshot> snapshot_;
  std::vector<Buffer> frames_;
  size_t next_ = 0;
  // Plain packets make no frames of the worker's own.
  PathState state_{0,       1,
                   0,       [](void*, uint32_t) { return OutFrame{}; },
                   nullptr, std::pmr::new_delete_resource()};
  Burst burst_{};
};

BENCHMARK_DEFINE_F(Pipeline, FromReceivedToCounted)(benchmark::State& state) {
  for (auto _ : state) {
    receive();
    forward_burst(burst_, snapshot_.get(), state_);
    count_burst(burst_, bed_.counters, state_);
  }
  if (burst_.verdict[0] != Verdict::kForwarded) state.SkipWithError("the packets were dropped");
  state.SetItemsProcessed(state.iterations() * kMaxBurst);
}
BENCHMARK_REGISTER_F(Pipeline, FromReceivedToCounted)
    ->ArgNames({"flows", "backends"})
    ->Args({512, 10})
    ->Args({1 << 16, 10})
    ->Args({1 << 16, 1000})
    ->Args({1 << 20, 10})
    ->Args({1 << 20, 1000});

}  // namespace
}  // namespace maglev
