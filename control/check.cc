#include "control/check.h"

#include <cctype>
#include <utility>

namespace maglev {
namespace {

using boost::system::error_code;
namespace errc = boost::system::errc;

bool is_local_shortage(const error_code& error) {
  return error == errc::too_many_files_open || error == errc::too_many_files_open_in_system ||
         error == errc::no_buffer_space || error == errc::not_enough_memory ||
         error == errc::address_not_available || error == errc::operation_not_permitted ||
         error == errc::resource_unavailable_try_again;
}

}  // namespace

CheckResult passed(std::string reason) {
  return {CheckResult::Outcome::kPassed, std::move(reason)};
}

CheckResult failed(std::string reason) {
  return {CheckResult::Outcome::kFailed, std::move(reason)};
}

CheckResult not_made(std::string reason) {
  return {CheckResult::Outcome::kNotMade, std::move(reason)};
}

CheckResult failed_by(const error_code& error, const std::string& doing) {
  std::string text = error.message();
  if (!text.empty()) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  if (!doing.empty()) text = doing + ": " + text;
  return is_local_shortage(error) ? not_made(std::move(text)) : failed(std::move(text));
}

error_code open_for_check(boost::asio::ip::tcp::socket& socket,
                          const boost::asio::ip::tcp::endpoint& endpoint) {
  error_code error;
  socket.open(endpoint.protocol(), error);
  if (!error) socket.set_option(boost::asio::socket_base::linger(true, 0), error);
  return error;
}

}  // namespace maglev
