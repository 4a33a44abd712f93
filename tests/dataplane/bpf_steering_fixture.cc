#include "tests/dataplane/bpf_steering_fixture.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <linux/if_link.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>

namespace maglev {

SteeredVip vip4(const char* text, uint8_t prefix_length) {
  SteeredVip vip{.prefix = {{}, AddressFamily::kIpv4, prefix_length}};
  inet_pton(AF_INET, text, vip.prefix.address.bytes.data());
  return vip;
}

SteeredVip vip6(const char* text, uint8_t prefix_length) {
  SteeredVip vip{.prefix = {{}, AddressFamily::kIpv6, prefix_length}};
  inet_pton(AF_INET6, text, vip.prefix.address.bytes.data());
  return vip;
}

std::unique_ptr<LoadedObject> attach_as_the_driver(uint32_t index) {
  auto object = std::make_unique<LoadedObject>(MAGLEV_STEERING_OBJECT);
  if (bpf_xdp_attach(static_cast<int>(index), object->program_fd(), XDP_FLAGS_UPDATE_IF_NOEXIST,
                     nullptr) != 0)
    throw std::runtime_error("something is attached");
  return object;
}

Answer try_to_connect(int timeout_ms, uint16_t port) {
  FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in vip{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
  inet_pton(AF_INET, "198.51.100.10", &vip.sin_addr);
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&vip), sizeof(vip)) != 0 &&
      errno != EINPROGRESS)
    return Answer::kReset;
  pollfd wait{.fd = client.get(), .events = POLLOUT, .revents = 0};
  return poll(&wait, 1, timeout_ms) == 0 ? Answer::kSilence : Answer::kReset;
}

SteeredVip tcp_vip(uint16_t port, uint8_t flags) {
  SteeredVip vip = vip4("198.51.100.10");
  vip.protocol = VipProtocol::kTcp;
  vip.port = port;
  vip.flags = flags;
  return vip;
}

void SteeringOwner::SetUp() {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: makes network namespaces";
  network_ = std::make_unique<TestNetwork>();
}

std::expected<Steering, std::string> SteeringOwner::prepare(const std::vector<SteeredVip>& vips) {
  return Steering::prepare("lb0", MAGLEV_STEERING_OBJECT, vips);
}

Steering SteeringOwner::ready(const std::vector<SteeredVip>& vips) const {
  auto steering = prepare(vips);
  if (!steering) throw std::runtime_error(steering.error());
  attach_as_the_driver(network_->index());
  auto bound = steering->bind();
  if (!bound) throw std::runtime_error(bound.error());
  return std::move(*steering);
}

Answer SteeringOwner::answer_from_far(uint16_t port) const {
  Answer answer;
  network_->in_far([&] { answer = try_to_connect(200, port); });
  return answer;
}

bool SteeringOwner::ping_is_answered() const {
  bool answered;
  network_->in_far(
      [&] { answered = std::system("ping -q -c1 -W1 198.51.100.10 > /dev/null") == 0; });
  return answered;
}

Prober::Prober(const TestNetwork& network) {
  // The thread stays in the namespace that it is started in.
  network.in_far([this] {
    client_ = std::jthread([this] {
      while (!stop_) {
        if (try_to_connect(1, 80) == Answer::kReset) ++resets_;
        ++attempts_;
      }
    });
  });
}

int Prober::resets() {
  stop_ = true;
  client_.join();
  return resets_;
}

}  // namespace maglev
