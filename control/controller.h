// The controller: keeps what is published in step with what is wanted, what checks find and where
// the kernel would send packets.
//
// Thread: one at a time; nothing here waits for anything but the disk. Time and the outside world
// come in through Senses, so that tests need neither network nor clock.
// Invariants:
// 1. A change by socket is durable before it is published, and published before it is acknowledged.
// 2. Generations only grow: the next is 1 + the largest of state, root and report, so that losing
//    one of them never moves it back. Where nothing would change, nothing is published.
// 3. A publication costs what changed: a pool is planned again only when something about it is new.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "control/configuration.h"
#include "control/connections.h"
#include "control/dataplane_report.h"
#include "control/health.h"
#include "control/model.h"
#include "control/next_hops.h"
#include "control/plan.h"
#include "control/publisher.h"
#include "control/state.h"

namespace maglev {

class Controller {
 public:
  using Clock = std::chrono::steady_clock;

  struct Senses {
    std::function<void(const std::vector<HealthTarget>&)> check;
    std::function<Health(std::string_view pool, std::string_view backend)> health_of;
    std::function<void(const std::set<boost::asio::ip::address>&)> watch;
    std::function<NextHop(const boost::asio::ip::address& address)> next_hop_of;
    std::function<std::optional<PathMtuMemory::Entry>(const boost::asio::ip::address& address)>
        path_mtu_of;
    // nullopt where this host cannot hear them.
    std::function<std::optional<PathMtus::Counts>()> path_mtu_messages;
    std::function<Clock::time_point()> now;
    std::function<uint64_t()> boot_time_ns;  // as histories and reports count time
    BootId boot{};
  };

  // `reported_generation` is the largest that the dataplane's report names, 0 without a report.
  Controller(Configuration configuration, State::Opened state, std::unique_ptr<Publisher> publisher,
             uint64_t reported_generation, Senses senses);

  // What the socket shows.
  const Configuration& configuration() const { return configuration_; }
  const Model& model() const { return model_; }
  uint64_t generation() const { return published_generation_; }  // 0: nothing published yet
  const PlannedPool* planned(std::string_view pool) const;       // null before its publication
  // The table file of a pool that is planned.
  std::expected<std::vector<std::byte>, std::string> read_table(const PlannedPool& plan) const {
    return publisher_->read(kTableDirectory, plan.table);
  }
  const Connections& connections() const { return connections_; }
  uint64_t boot_time_ns() const { return senses_.boot_time_ns(); }
  Clock::time_point now() const { return senses_.now(); }
  std::optional<PathMtus::Counts> path_mtu_messages() const { return senses_.path_mtu_messages(); }
  Health health_of(std::string_view pool, std::string_view backend) const;
  WayOut way_out_of(const boost::asio::ip::address& address) const;

  // Carries out a change that model() planned. Returns the first generation that contains it.
  std::expected<uint64_t, Refusal> commit(std::expected<Overrides, Refusal> planned);

  // What such a change would move in the tables of pools that are there before and after it, and
  // changes nothing. Of backends that it adds or alters, the next check is taken to succeed.
  struct Foreseen {
    std::string pool;
    Change change;
  };
  std::expected<std::vector<Foreseen>, Refusal> foresee(
      std::expected<Overrides, Refusal> planned) const;

  // Takes a new configuration file; what was set by socket stays laid over it. What is unchanged in
  // it changes nothing. Either all of it is taken, or nothing is and the sentences say why.
  std::expected<void, std::vector<std::string>> reload(Configuration configuration);

  // News from the outside, published with the next tick().
  void health_changed(const std::string& pool, const std::string& backend, const Health& health);
  void next_hops_changed(const std::vector<boost::asio::ip::address>& addresses);
  void path_mtus_changed(const std::vector<boost::asio::ip::address>& addresses);
  void flows_reported(const DataplaneStatus& dataplane);

  // Whether the dataplane may have sent such a packet.
  bool is_outer_packet(const OuterPacket& packet) const;

  // To be called every kTick: publishes what has gathered since the last one. Now and then it also
  // looks whether the published files are still as they were written, and makes them again if not.
  static constexpr std::chrono::milliseconds kTick{100};
  void tick();

 private:
  // The first checks of a pool of which no verdict is known.
  struct Settling {
    Clock::time_point deadline;
    std::set<std::string, std::less<>> unchecked;
  };

  void forget(const std::vector<Model::Dropped>& dropped);
  void pool_changed(const std::string& name);
  // Calls f(pool's name, backend's name, its address) for each backend at one of the addresses.
  template <typename F>
  void for_each_backend_at(const std::vector<boost::asio::ip::address>& addresses, F f) const;
  // Where `off_link` backends of the pool are behind a gateway.
  void warn_of_layer2(const std::string& pool, size_t off_link) const;
  void start_settling(const std::string& name, const Pool& pool);
  void end_settling();
  bool must_hold() const;
  void renew_senses();
  std::expected<void, std::string> publish();
  bool is_published() const;
  void look_for_damage();
  void take_published_root();
  void save_publication();
  std::expected<void, std::string> plan_dirty_pools();
  PoolSenses senses_of(const std::string& pool) const;
  enum class ReuseTable : bool { kNo, kYes };
  std::expected<void, std::string> plan_one(const std::string& name, ReuseTable reuse);
  std::expected<void, std::string> write_planned_files();
  std::expected<void, std::string> write_histories();
  std::expected<void, std::string> write_root();

  Configuration configuration_;
  std::unique_ptr<State> state_;
  std::unique_ptr<Publisher> publisher_;
  Senses senses_;
  Model model_;
  Connections connections_;
  std::map<std::pair<std::string, std::string>, RememberedVerdict> verdicts_;
  std::vector<RememberedVerdict> unsaved_verdicts_;

  ByName<PlannedPool> planned_;
  std::set<std::string, std::less<>> dirty_pools_;
  bool root_is_dirty_ = true;
  ByName<Settling> settling_;
  Clock::time_point hold_checks_until_;
  Clock::time_point hold_next_hops_until_;
  bool is_held_ = true;      // the first publication waits for first checks and next hops
  bool is_damaged_ = false;  // the published files are not as they were written
  Clock::time_point look_for_damage_at_;
  Clock::time_point retry_at_;
  std::string last_failure_;

  uint64_t published_generation_ = 0;
  uint64_t largest_generation_ = 0;
  uint64_t saved_generation_ = 0;
  uint64_t reported_generation_ = 0;
};

}  // namespace maglev
