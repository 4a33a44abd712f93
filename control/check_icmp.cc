// A check that an ICMP echo request is answered (RFC 792, RFC 4443). It needs CAP_NET_RAW.
#include <linux/icmp.h>
#include <linux/icmpv6.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/icmp.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <random>
#include <utility>

#include "control/check.h"

namespace maglev {
namespace {

using boost::asio::ip::icmp;
using boost::system::error_code;

// The same in both families: type, code, checksum, identifier, sequence number; then our data.
struct EchoMessage {
  uint8_t type = 0;
  uint8_t code = 0;
  uint16_t checksum_be = 0;
  uint32_t id_and_sequence = 0;  // random: any order will do
  uint64_t nonce = 0;
};
static_assert(sizeof(EchoMessage) == 16);

// RFC 1071. ICMPv6's also covers addresses and is the kernel's work.
uint16_t internet_checksum(const EchoMessage& message) {
  std::array<uint16_t, sizeof(message) / 2> words;
  std::memcpy(words.data(), &message, sizeof(message));
  uint32_t sum = 0;
  for (const uint16_t word : words) sum += word;
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~(sum + (sum >> 16)));
}

class IcmpCheck : public Check, public std::enable_shared_from_this<IcmpCheck> {
 public:
  IcmpCheck(boost::asio::io_context& io, const HealthTarget& target)
      : endpoint_(target.address, 0), socket_(io) {}

  void start(Done done) override {
    done_ = std::move(done);
    if (const error_code error = send()) {
      boost::asio::post(socket_.get_executor(),
                        [self = shared_from_this(), error] { self->finish(failed_by(error)); });
      return;
    }
    receive();
  }

  void abort() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  bool is_v4() const { return endpoint_.address().is_v4(); }

  error_code send() {
    static std::mt19937_64 random{std::random_device{}()};
    request_.type = is_v4() ? ICMP_ECHO : ICMPV6_ECHO_REQUEST;
    request_.id_and_sequence = static_cast<uint32_t>(random());
    request_.nonce = random();
    if (is_v4()) request_.checksum_be = internet_checksum(request_);
    error_code error;
    socket_.open(endpoint_.protocol(), error);
    // Connected, so that the kernel hands over only what comes from the backend.
    if (!error) socket_.connect(endpoint_, error);
    // Without it an unreachable host is known by the time-out alone.
    const int level = is_v4() ? IPPROTO_IP : IPPROTO_IPV6;
    const int option = is_v4() ? IP_RECVERR : IPV6_RECVERR;
    const int on = 1;
    if (!error) ::setsockopt(socket_.native_handle(), level, option, &on, sizeof(on));
    if (!error) socket_.send(boost::asio::buffer(&request_, sizeof(request_)), 0, error);
    return error;
  }

  void receive() {
    socket_.async_receive(boost::asio::buffer(packet_),
                          [self = shared_from_this()](const error_code& error, size_t length) {
                            if (error) {
                              self->finish(failed_by(error));
                            } else if (self->is_answer(length)) {
                              self->finish(passed("answered"));
                            } else {
                              self->receive();
                            }
                          });
  }

  // An IPv4 raw socket gives the IP header too.
  bool is_answer(size_t length) const {
    const size_t header_bytes = is_v4() ? size_t{packet_[0] & 0xfu} * 4 : 0;
    if (length < header_bytes + sizeof(EchoMessage)) return false;
    EchoMessage answer;
    std::memcpy(&answer, packet_.data() + header_bytes, sizeof(answer));
    return answer.type == (is_v4() ? ICMP_ECHOREPLY : ICMPV6_ECHO_REPLY) &&
           answer.id_and_sequence == request_.id_and_sequence && answer.nonce == request_.nonce;
  }

  void finish(CheckResult result) {
    abort();
    std::exchange(done_, {})(std::move(result));
  }

  const icmp::endpoint endpoint_;
  icmp::socket socket_;
  EchoMessage request_;
  std::array<uint8_t, 256> packet_;
  Done done_;
};

}  // namespace

CheckPtr make_icmp_check(boost::asio::io_context& io, const HealthTarget& target) {
  return std::make_shared<IcmpCheck>(io, target);
}

}  // namespace maglev
