// A host in the fuzzer: workers around the real pipeline that do what dataplane/worker.cc does
// around devices, with everything checked after every burst.
//
// Every packet is a heap block of exactly headroom and frame, so that the address sanitizer sees
// each byte read or written beyond; each block has one place, so that none is leaked or given back
// twice. Single-threaded.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "dataplane/pipeline.h"
#include "tests/fuzz/configurations.h"
#include "tests/fuzz/output.h"

namespace maglev::fuzz {

// Of the whole process, over all inputs.
struct Statistics {
  uint64_t packets = 0;  // received from devices
  uint64_t bursts = 0;
  uint64_t adopted = 0;
  uint64_t refused = 0;
  std::array<uint64_t, kVerdictCount> verdicts{};
  std::array<uint64_t, kOriginCount> originated{};
  uint64_t held = 0;
  uint64_t released = 0;
  uint64_t handed_over = 0;
};
extern Statistics statistics;

inline constexpr uint32_t kMaxWorkers = 3;

class Lab {
 public:
  Lab(uint32_t workers, uint64_t answers_per_second);
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;

  // Room for one more frame in the burst to come; its bytes are the caller's to fill.
  uint8_t* add_frame(uint32_t length, bool segmented);
  uint32_t pending() const { return static_cast<uint32_t>(pending_.size()); }
  ByteView last_frame() const;
  uint8_t* patch_last_frame();
  void resize_last_frame(uint32_t length);

  // Worker `worker` receives what is pending by `port`; at most `transmit_room` frames leave.
  void receive(uint32_t worker, uint32_t port, bool partial_checksums, uint32_t transmit_room);
  // It looks after what waits.
  void wait(uint32_t worker);
  void pass_time(uint64_t ns) { now_ns_ += ns; }
  void publish(const Configuration& configuration, uint64_t hash_seed);
  void set_free_buffers(uint32_t count) { free_buffers_ = count; }
  std::span<const VipRecord> vips() const;

  // Lets everything end that waits, and checks that nothing is left. Once.
  void finish();

 private:
  enum class Where : uint8_t { kPending, kReceived, kHeld, kInbox, kOwn };
  struct Buffer {
    explicit Buffer(uint32_t room);
    std::unique_ptr<uint8_t[]> block;
    uint32_t room;  // behind the headroom
    uint8_t* frame;
    uint32_t length;
    uint32_t port = 0;
    uint32_t worker = 0;
    bool segmented = false;
    Where where = Where::kPending;
  };
  struct Worker {
    Worker(Lab& lab, uint32_t number, uint32_t workers, uint64_t answers_per_second);
    WorkerCounters counters;
    std::array<FlowCounters, kCountedVips> vips;
    std::array<FlowCounters, kCountedBackends> backends;
    PathState state;
    std::deque<Buffer*> inbox;
    uint64_t next_expiry_ns = 0;
  };

  static OutFrame allocate(void* lab, uint32_t room);
  void free(Buffer* buffer);
  void take_burst(BurstSource source, std::span<Buffer* const> buffers);
  void forward(Worker& worker);
  void keep_originals();
  void check_outcome(const Worker& worker);
  void check_by_general_reader(uint32_t i);
  void move_on(Worker& worker);
  void transmit();
  void check_frame(uint32_t i) const;
  Route route_of(uint32_t i) const;
  void send_own_frames(Worker& worker);
  void check_own_frame(const OutFrame& out);
  void check_counters(const Worker& worker) const;
  void check_sums(const Worker& worker) const;
  Buffer& buffer_of(uint32_t i) { return *static_cast<Buffer*>(burst_.buffer[i]); }

  std::array<PortFacts, 3> ports_;
  Registries registries_;
  Published published_;
  uint64_t generation_ = 0;
  uint64_t now_ns_ = 1'000'000'000;
  uint32_t free_buffers_ = UINT32_MAX;
  uint32_t transmit_room_ = UINT32_MAX;
  uint32_t live_buffers_ = 0;
  uint32_t cut_packet_ = 0;  // of the burst, whose parts are being sent
  std::vector<Buffer*> pending_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Burst burst_;
  std::vector<uint8_t> originals_;  // the burst's frames as they came, one behind the other
  std::array<ByteView, kMaxBurst> original_;
};

}  // namespace maglev::fuzz
