// The intent: what the file says with what was set by socket laid over it.
//
// A change takes two steps, so that it can be made durable in between: a plan_ function checks it
// against the model and returns what to remember; apply() then carries it out and cannot fail. What
// was remembered is laid over the file again at every start with restore().
//
// Thread: one at a time. Pure: no input or output.
// Invariants:
// 1. Every VIP's pool exists; VIPs are distinct by name and by what they serve, agree where they
//    must (VipRecord), and those of encapsulation l2 have backends of their own family.
// 2. pools() and vips() are a function of the file and of the overrides.
#pragma once

#include <compare>
#include <expected>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "control/configuration.h"

namespace maglev {

// Why a request was not carried out: a code that stays the same between versions, one of those in
// docs/control-socket.md, and a sentence that says what to do.
struct Refusal {
  std::string_view code;
  std::string message;
};

inline std::unexpected<Refusal> refuse(std::string_view code, std::string message) {
  return std::unexpected(Refusal{code, std::move(message)});
}

// What an override is about.
struct OverrideKey {
  enum class Kind : uint8_t { kPool = 1, kBackend = 2, kVip = 3 };
  Kind kind;
  std::string pool;  // of a backend; empty otherwise
  std::string name;
  auto operator<=>(const OverrideKey&) const = default;
};

struct Forgotten {  // nothing is set by socket and the file does not name it: it is gone
  bool operator==(const Forgotten&) const = default;
};
struct Removed {  // the file names it, but the socket removed it
  bool operator==(const Removed&) const = default;
};
using OverrideValue = std::variant<Forgotten, Removed, PoolSettings, Backend, BackendPatch, Vip>;

// One thing set by socket. One about a pool drops the overrides of all its backends.
struct Override {
  OverrideKey key;
  OverrideValue value;
};
using Overrides = std::vector<Override>;

class Model {
 public:
  Model(ByName<Pool> file_pools, ByName<Vip> file_vips);

  const ByName<Pool>& pools() const { return pools_; }
  const ByName<Vip>& vips() const { return vips_.all(); }
  const VipSet& vip_set() const { return vips_; }

  std::expected<Overrides, Refusal> plan_add_pool(const Named<Pool>& pool) const;
  std::expected<Overrides, Refusal> plan_remove_pool(std::string_view name) const;
  std::expected<Overrides, Refusal> plan_add_backend(std::string_view pool,
                                                     const Named<Backend>& backend) const;
  std::expected<Overrides, Refusal> plan_patch_backend(std::string_view pool, std::string_view name,
                                                       const BackendPatch& patch) const;
  std::expected<Overrides, Refusal> plan_remove_backend(std::string_view pool,
                                                        std::string_view name) const;
  std::expected<Overrides, Refusal> plan_add_vip(const Named<Vip>& vip) const;
  std::expected<Overrides, Refusal> plan_remove_vip(std::string_view name) const;

  std::expected<const Pool*, Refusal> find_pool(std::string_view name) const;
  std::expected<const Vip*, Refusal> find_vip(std::string_view name) const;

  void apply(const Overrides& changes);

  // Lays what an earlier process remembered over the file. What no longer fits the file, or says
  // nothing beyond it, is left out and returned, with the reason, to be forgotten.
  struct Dropped {
    Override change;
    std::string why;
    // The file takes the place of a VIP or a backend of the socket: traffic would be lost with it.
    bool is_conflict = false;
  };
  std::vector<Dropped> restore(Overrides remembered);

  Overrides overrides() const;

 private:
  void apply_one(const Override& change);
  void apply_to_pool(const Override& change);
  void apply_to_backend(const Override& change);
  struct Misfit {
    std::string why;
    bool is_conflict = false;
  };
  std::expected<void, Misfit> check_restored(const Override& change) const;
  std::expected<void, Misfit> check_restored_backend(const Override& change) const;
  std::expected<void, std::string> check_backend_fits(const Pool& pool, int owners_more,
                                                      size_t backends_more) const;
  std::expected<void, std::string> check_family(std::string_view pool,
                                                const Backend& backend) const;
  std::expected<void, Refusal> check_vip(std::string_view name, const Vip& vip) const;
  std::vector<Dropped> drop_families_unfit();
  const Backend* file_backend(std::string_view pool, std::string_view name) const;

  ByName<Pool> file_pools_;
  ByName<Vip> file_vips_;
  std::map<OverrideKey, OverrideValue> overrides_;  // no Forgotten in it
  ByName<Pool> pools_;
  VipSet vips_;
};

}  // namespace maglev
