// The control socket's paths: from a request to an answer, as docs/control-socket.md tells.
//
// Thread: the controller's. Knows nothing of sockets: an answer that is to wait says for what, and
// the server waits.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "control/controller.h"
#include "control/dataplane_report.h"

namespace maglev {

struct ApiRequest {
  std::string method;
  std::string target;  // path and query, as sent
  std::string body;
  std::string if_match = {};  // that header's value; empty: none
  std::string client = {};    // who asks, for the log
};

struct ApiAnswer {
  unsigned status = 200;
  nlohmann::ordered_json body;
  std::string allow;        // with status 405: the methods that the path takes
  std::string metrics;      // sent instead of the body where it is not empty
  uint64_t generation = 0;  // that the answer is of, sent as its entity tag; 0: of none

  // To be held until all workers use this generation, or the time is over.
  struct Wait {
    uint64_t generation;
    uint32_t timeout_ms;
  };
  std::optional<Wait> wait;
};

// Reads the configuration file again and takes it, or tells why not. Asked by POST alone.
using Reload = std::function<std::expected<void, std::vector<std::string>>()>;

ApiAnswer answer_api(Controller& controller, const DataplaneStatus& dataplane,
                     const ApiRequest& request, const Reload& reload);

// The same of an address or socket that may change nothing.
ApiAnswer answer_read_only(Controller& controller, const DataplaneStatus& dataplane,
                           const ApiRequest& request);

ApiAnswer refuse_api(const Refusal& refusal);

// What a held answer becomes once all workers use its generation, and when they did not in time.
ApiAnswer adopted_answer(ApiAnswer held);
ApiAnswer not_adopted_answer(const ApiAnswer& held, const DataplaneStatus& dataplane);

}  // namespace maglev
