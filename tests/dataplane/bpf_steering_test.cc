// Steering, the owner of an interface's programs, on a real veth pair: what it puts there,
// replaces, refuses and removes, and that the kernel stays silent about VIPs all the while.
#include <bpf/bpf.h>
#include <gmock/gmock.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/pkt_cls.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xdp/xsk.h>

#include "tests/dataplane/bpf_steering_fixture.h"

namespace maglev {
namespace {

using testing::HasSubstr;

template <typename T>
std::string error_of(const std::expected<T, std::string>& result) {
  return result ? "no error" : result.error();
}

const std::vector<SteeredVip> kVips = {vip4("198.51.100.10"), vip6("2001:db8::10")};

std::string ingress_filters() {
  return output_of("tc filter show dev lb0 ingress");
}

// A worker's AF_XDP socket on queue 0, put into the map as the driver does.
class WorkerSocket {
 public:
  explicit WorkerSocket(int xsks_map_fd) {
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(xsk_umem__create(&umem_, memory_, kBytes, &fill_, &completion_, nullptr), 0);
    xsk_socket_config config{};
    config.rx_size = kFrames;
    config.tx_size = kFrames;
    config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
    EXPECT_EQ(xsk_socket__create(&socket_, "lb0", 0, umem_, &receive_, &send_, &config), 0);
    uint32_t at = 0;
    EXPECT_EQ(xsk_ring_prod__reserve(&fill_, kFrames, &at), kFrames);
    for (uint32_t i = 0; i < kFrames; ++i)
      *xsk_ring_prod__fill_addr(&fill_, at + i) = uint64_t{i} * XSK_UMEM__DEFAULT_FRAME_SIZE;
    xsk_ring_prod__submit(&fill_, kFrames);
    const uint32_t queue = 0;
    const int fd = xsk_socket__fd(socket_);
    EXPECT_EQ(bpf_map_update_elem(xsks_map_fd, &queue, &fd, 0), 0);
  }
  ~WorkerSocket() {
    xsk_socket__delete(socket_);
    xsk_umem__delete(umem_);
    munmap(memory_, kBytes);
  }
  WorkerSocket(const WorkerSocket&) = delete;
  WorkerSocket& operator=(const WorkerSocket&) = delete;

  uint32_t received() {
    uint32_t at = 0;
    return xsk_ring_cons__peek(&receive_, kFrames, &at);
  }

 private:
  static constexpr uint32_t kFrames = 64;
  static constexpr size_t kBytes = size_t{kFrames} * XSK_UMEM__DEFAULT_FRAME_SIZE;
  void* memory_;
  xsk_umem* umem_ = nullptr;
  xsk_socket* socket_ = nullptr;
  xsk_ring_prod fill_{}, send_{};
  xsk_ring_cons completion_{}, receive_{};
};

TEST_F(SteeringOwner, KeepsTheKernelSilentWithNothingButTheGuard) {
  // Without it the kernel resets: it owns the address and nobody listens.
  ASSERT_EQ(answer_from_far(), Answer::kReset);
  {
    auto steering = prepare(kVips);
    ASSERT_TRUE(steering) << steering.error();
    EXPECT_EQ(answer_from_far(), Answer::kSilence);
    EXPECT_EQ(steering->counters()->guarded, 1u);
    network_->in_far([] { shell("ping -q -c1 -W1 198.18.1.1 > /dev/null"); });
  }
  // The owner is gone, the guard is not.
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
  ASSERT_TRUE(Steering::detach("lb0"));
  EXPECT_EQ(answer_from_far(), Answer::kReset);
}

TEST_F(SteeringOwner, LeavesNothingAfterDetach) {
  const std::string before = output_of("tc qdisc show dev lb0");
  ASSERT_TRUE(prepare(kVips));
  attach_as_the_driver(network_->index());
  ASSERT_NE(output_of("tc qdisc show dev lb0"), before);
  auto detached = Steering::detach("lb0");
  ASSERT_TRUE(detached) << detached.error();
  EXPECT_EQ(xdp_name("lb0"), "");
  EXPECT_EQ(output_of("tc qdisc show dev lb0"), before);
  EXPECT_TRUE(Steering::detach("lb0")) << "nothing to remove is no error";
}

TEST_F(SteeringOwner, SteersToTheWorkerAndDropsWhenItDies) {
  auto steering = prepare(kVips);
  ASSERT_TRUE(steering) << steering.error();
  auto object = attach_as_the_driver(network_->index());
  auto bound = steering->bind();
  ASSERT_TRUE(bound) << bound.error();
  {
    WorkerSocket worker(object->map_fd("xsks_map"));
    EXPECT_EQ(answer_from_far(), Answer::kSilence);
    EXPECT_EQ(worker.received(), 1u);
    EXPECT_EQ(steering->counters()->redirected, 1u);
    EXPECT_EQ(steering->counters()->dropped, 0u);
  }
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
  EXPECT_EQ(steering->counters()->redirected, 1u);
  EXPECT_EQ(steering->counters()->dropped, 1u);
  EXPECT_EQ(steering->counters()->guarded, 0u);
  const uint64_t passed = steering->counters()->passed;
  network_->in_far([] { shell("ping -q -c1 -W1 198.18.1.1 > /dev/null"); });
  EXPECT_GT(steering->counters()->passed, passed);
}

TEST_F(SteeringOwner, RemovesAStaleProgramOfOurs) {
  attach_as_the_driver(network_->index());
  ASSERT_EQ(xdp_name("lb0"), "maglev_steering");
  auto steering = prepare(kVips);
  ASSERT_TRUE(steering) << steering.error();
  EXPECT_EQ(xdp_name("lb0"), "");
}

TEST_F(SteeringOwner, RefusesAForeignProgramByIdAndNameAndLeavesIt) {
  FileDescriptor foreign = load_foreign_program(BPF_PROG_TYPE_XDP, "someone_else", XDP_PASS);
  ASSERT_EQ(bpf_xdp_attach(static_cast<int>(network_->index()), foreign.get(), 0, nullptr), 0);
  const uint32_t id = attached_xdp("lb0", network_->index())->program.id;
  auto steering = prepare(kVips);
  ASSERT_FALSE(steering);
  EXPECT_THAT(steering.error(), HasSubstr("lb0: XDP program \"someone_else\" (id " +
                                          std::to_string(id) + ") is attached and is not ours"));
  EXPECT_EQ(ingress_filters(), "");
  EXPECT_TRUE(Steering::detach("lb0"));
  EXPECT_EQ(xdp_name("lb0"), "someone_else");
}

TEST_F(SteeringOwner, TakesAProgramWithOurNameButOtherMapsForForeign) {
  FileDescriptor foreign = load_foreign_program(BPF_PROG_TYPE_XDP, "maglev_steering", XDP_PASS);
  ASSERT_EQ(bpf_xdp_attach(static_cast<int>(network_->index()), foreign.get(), 0, nullptr), 0);
  EXPECT_FALSE(prepare(kVips));
  EXPECT_TRUE(Steering::detach("lb0"));
  EXPECT_EQ(xdp_name("lb0"), "maglev_steering");
}

// At the guard's handle, so that only the priority tells them apart.
void attach_foreign_filter(uint32_t index, uint32_t priority) {
  FileDescriptor foreign =
      load_foreign_program(BPF_PROG_TYPE_SCHED_CLS, "someone_filter", TC_ACT_OK);
  LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = static_cast<int>(index),
              .attach_point = BPF_TC_INGRESS);
  LIBBPF_OPTS(bpf_tc_opts, options, .prog_fd = foreign.get(), .handle = 1, .priority = priority);
  ASSERT_EQ(bpf_tc_hook_create(&hook), 0);
  ASSERT_EQ(bpf_tc_attach(&hook, &options), 0);
}

TEST_F(SteeringOwner, RefusesAForeignFilterInTheGuardsPlace) {
  attach_foreign_filter(network_->index(), 1);
  auto steering = prepare(kVips);
  ASSERT_FALSE(steering);
  EXPECT_THAT(steering.error(), HasSubstr("lb0: tc ingress filter \"someone_filter\""));
  EXPECT_TRUE(Steering::detach("lb0"));
  EXPECT_THAT(ingress_filters(), HasSubstr("someone_filter"));
}

TEST_F(SteeringOwner, GuardsBeforeForeignFiltersAndLeavesThem) {
  attach_foreign_filter(network_->index(), 2);
  ASSERT_TRUE(prepare(kVips));
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
  ASSERT_TRUE(Steering::detach("lb0"));
  EXPECT_THAT(ingress_filters(), HasSubstr("someone_filter"));
  EXPECT_EQ(ingress_filters().find("maglev_guard"), std::string::npos);
}

TEST_F(SteeringOwner, NeedsTheDriversProgramToBind) {
  auto steering = prepare(kVips);
  ASSERT_TRUE(steering) << steering.error();
  auto bound = steering->bind();
  ASSERT_FALSE(bound);
  EXPECT_THAT(bound.error(), HasSubstr("lb0: the AF_XDP driver has attached no program"));
  FileDescriptor foreign = load_foreign_program(BPF_PROG_TYPE_XDP, "someone_else", XDP_PASS);
  ASSERT_EQ(bpf_xdp_attach(static_cast<int>(network_->index()), foreign.get(), 0, nullptr), 0);
  bound = steering->bind();
  ASSERT_FALSE(bound);
  EXPECT_THAT(bound.error(), HasSubstr("someone_else"));
}

TEST_F(SteeringOwner, FollowsTheInterfacesAddress) {
  Steering steering = ready(kVips);
  shell("ip link set lb0 address 02:00:00:00:00:77");
  network_->in_far([] { shell("ip neighbour flush dev cl0"); });
  EXPECT_EQ(answer_from_far(), Answer::kSilence) << "the guard's doing";
  EXPECT_EQ(steering.counters()->guarded, 1u);
  ASSERT_TRUE(steering.follow_mac());
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
  EXPECT_EQ(steering.counters()->guarded, 1u);
  EXPECT_EQ(steering.counters()->dropped, 1u);
}

TEST_F(SteeringOwner, LeavesFramesToAnotherHostToTheKernelWhichDropsThem) {
  Steering steering = ready(kVips);
  network_->in_far(
      [] { shell("ip neighbour replace 198.18.1.1 lladdr 02:00:00:00:00:99 dev cl0"); });
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
  EXPECT_EQ(steering.counters()->dropped + steering.counters()->guarded, 0u);
}

TEST_F(SteeringOwner, IsTheOnlyOneOnItsInterface) {
  {
    auto first = prepare(kVips);
    ASSERT_TRUE(first) << first.error();
    for (const std::string& error : {error_of(prepare(kVips)), error_of(Steering::detach("lb0"))})
      EXPECT_THAT(error, HasSubstr("lb0: a maglev-dataplane or maglev-decap already runs"));
  }
  EXPECT_TRUE(prepare(kVips));
}

TEST_F(SteeringOwner, SaysWhatIsMissing) {
  EXPECT_THAT(error_of(Steering::prepare("nowhere", MAGLEV_STEERING_OBJECT, kVips)),
              HasSubstr("nowhere: no such network interface"));
  EXPECT_THAT(error_of(Steering::prepare("lb0", "/nowhere.o", kVips)),
              HasSubstr("/nowhere.o: cannot open the steering program: No such file"));
  EXPECT_THAT(error_of(Steering::prepare("lb0", MAGLEV_GUARD_OBJECT, kVips)),
              HasSubstr("not a steering program of ours"));
  EXPECT_THAT(error_of(Steering::detach("nowhere")), HasSubstr("no such network interface"));
}

TEST_F(SteeringOwner, SaysThatPrivilegesAreMissing) {
  pid_t child = fork();
  if (child == 0) {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> none{};
    if (syscall(SYS_capset, &header, none.data()) != 0) _exit(2);
    auto steering = prepare(kVips);
    _exit(!steering && steering.error().find("run as root") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

TEST_F(SteeringOwner, NeverLetsTheKernelAnswerWhileItRestarts) {
  ASSERT_TRUE(prepare(kVips));
  Prober prober(*network_);
  for (int round = 0; round < 50; ++round) {
    auto steering = prepare(kVips);
    EXPECT_TRUE(steering);
    auto object = attach_as_the_driver(network_->index());
    EXPECT_TRUE(steering && steering->bind());
    // Every other time it is stopped, not killed: the driver removes its program.
    if (round % 2 == 0) {
      EXPECT_EQ(bpf_xdp_detach(static_cast<int>(network_->index()), 0, nullptr), 0);
    }
  }
  EXPECT_EQ(prober.resets(), 0) << "of " << prober.attempts();
  EXPECT_GT(prober.attempts(), 50);
}

}  // namespace
}  // namespace maglev
