#include "control/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace maglev {
namespace {

using Kind = OverrideKey::Kind;

OverrideKey pool_key(std::string_view name) {
  return {Kind::kPool, "", std::string(name)};
}
OverrideKey backend_key(std::string_view pool, std::string_view name) {
  return {Kind::kBackend, std::string(pool), std::string(name)};
}
OverrideKey vip_key(std::string_view name) {
  return {Kind::kVip, "", std::string(name)};
}

constexpr const char* kFileSaysTheSame = "the file says the same";
constexpr const char* kNotInFile = "the file no longer names it";

OverrideValue gone(bool named_by_file) {
  return named_by_file ? OverrideValue(Removed{}) : OverrideValue(Forgotten{});
}

void patch(Backend& backend, const BackendPatch& patch) {
  backend.weight = patch.weight.value_or(backend.weight);
  backend.state = patch.state.value_or(backend.state);
}

// Whether it may leave a slot of the table to another backend.
bool frees_slot(const OverrideValue& value) {
  if (const auto* patch = std::get_if<BackendPatch>(&value)) return patch->weight == 0u;
  if (const auto* backend = std::get_if<Backend>(&value)) return backend->weight == 0;
  return std::holds_alternative<Removed>(value);
}

// Restoring goes in this order: VIPs need their pools, a pool can only go when no VIP needs it, and
// a removed VIP or backend may free the address or the slot of another.
int restore_rank(const Override& change) {
  const bool removes = std::holds_alternative<Removed>(change.value);
  switch (change.key.kind) {
    case Kind::kPool:
      return removes ? 5 : 0;
    case Kind::kBackend:
      return frees_slot(change.value) ? 1 : 2;
    case Kind::kVip:
      return removes ? 3 : 4;
  }
  return 6;
}

}  // namespace

Model::Model(ByName<Pool> file_pools, ByName<Vip> file_vips)
    : file_pools_(std::move(file_pools)),
      file_vips_(std::move(file_vips)),
      pools_(file_pools_),
      vips_(file_vips_) {}

std::expected<const Pool*, Refusal> Model::find_pool(std::string_view name) const {
  const auto pool = pools_.find(name);
  if (pool != pools_.end()) return &pool->second;
  return refuse("unknown_pool", fmt::format("no pool is named '{}'", name));
}

std::expected<const Vip*, Refusal> Model::find_vip(std::string_view name) const {
  const auto vip = vips().find(name);
  if (vip != vips().end()) return &vip->second;
  return refuse("unknown_vip", fmt::format("no VIP is named '{}'", name));
}

const Backend* Model::file_backend(std::string_view pool, std::string_view name) const {
  const auto file_pool = file_pools_.find(pool);
  if (file_pool == file_pools_.end() || overrides_.contains(pool_key(pool))) return nullptr;
  const auto backend = file_pool->second.backends.find(name);
  return backend == file_pool->second.backends.end() ? nullptr : &backend->second;
}

std::expected<Overrides, Refusal> Model::plan_add_pool(const Named<Pool>& pool) const {
  const auto& [name, wanted] = pool;
  if (pools_.contains(name)) {
    return refuse("exists", fmt::format("a pool named '{}' exists already", name));
  }
  if (const auto fits = check_backend_fits(wanted, 0, wanted.backends.size()); !fits) {
    return refuse("bad_request", fits.error());
  }
  Overrides changes = {{pool_key(name), by_socket(wanted.settings)}};
  for (const auto& [backend_name, backend] : wanted.backends) {
    changes.push_back({backend_key(name, backend_name), by_socket(backend)});
  }
  return changes;
}

std::expected<Overrides, Refusal> Model::plan_remove_pool(std::string_view name) const {
  if (const auto pool = find_pool(name); !pool) return std::unexpected(pool.error());
  for (const auto& [vip_name, vip] : vips()) {
    if (vip.pool == name) {
      return refuse("in_use",
                    fmt::format("VIP '{}' uses pool '{}': remove the VIP first", vip_name, name));
    }
  }
  return Overrides{{pool_key(name), gone(file_pools_.contains(name))}};
}

std::expected<Overrides, Refusal> Model::plan_add_backend(std::string_view pool_name,
                                                          const Named<Backend>& backend) const {
  const auto pool = find_pool(pool_name);
  if (!pool) return std::unexpected(pool.error());
  const auto& [name, wanted] = backend;
  if ((*pool)->backends.contains(name)) {
    return refuse("exists", fmt::format("pool '{}' has a backend named '{}' already: PATCH changes "
                                        "its weight or state",
                                        pool_name, name));
  }
  if (const auto fits = check_backend_fits(**pool, wanted.weight > 0 ? 1 : 0, 1); !fits) {
    return refuse("bad_request", fits.error());
  }
  if (const auto fits = check_family(pool_name, wanted); !fits) {
    return refuse("bad_request", fits.error());
  }
  if (const auto fits = check_server_id(**pool, backend); !fits) {
    return refuse("bad_request", fits.error());
  }
  return Overrides{{backend_key(pool_name, name), by_socket(wanted)}};
}

std::expected<Overrides, Refusal> Model::plan_patch_backend(std::string_view pool_name,
                                                            std::string_view name,
                                                            const BackendPatch& change) const {
  const auto pool = find_pool(pool_name);
  if (!pool) return std::unexpected(pool.error());
  const auto backend = (*pool)->backends.find(name);
  if (backend == (*pool)->backends.end()) {
    return refuse("unknown_backend",
                  fmt::format("pool '{}' has no backend named '{}'", pool_name, name));
  }
  Backend patched = backend->second;
  patch(patched, change);
  const int owners_more = (patched.weight > 0 ? 1 : 0) - (backend->second.weight > 0 ? 1 : 0);
  if (const auto fits = check_pool_fits(**pool, owners_more); !fits) {
    return refuse("bad_request", fits.error());
  }

  OverrideKey key = backend_key(pool_name, name);
  if (patched.source == Source::kSocket) return Overrides{{std::move(key), patched}};
  BackendPatch merged = change;
  if (const auto earlier = overrides_.find(key); earlier != overrides_.end()) {
    const auto& before = std::get<BackendPatch>(earlier->second);
    if (!merged.weight) merged.weight = before.weight;
    if (!merged.state) merged.state = before.state;
  }
  return Overrides{{std::move(key), merged}};
}

std::expected<Overrides, Refusal> Model::plan_remove_backend(std::string_view pool_name,
                                                             std::string_view name) const {
  const auto pool = find_pool(pool_name);
  if (!pool) return std::unexpected(pool.error());
  if (!(*pool)->backends.contains(name)) {
    return refuse("unknown_backend",
                  fmt::format("pool '{}' has no backend named '{}'", pool_name, name));
  }
  return Overrides{{backend_key(pool_name, name), gone(file_backend(pool_name, name) != nullptr)}};
}

// Room in the table for its owners, and in the dataplane's counters.
std::expected<void, std::string> Model::check_backend_fits(const Pool& pool, int owners_more,
                                                           size_t backends_more) const {
  size_t all = backends_more;
  for (const auto& [name, other] : pools_) all += other.backends.size();
  if (backends_more > 0 && all > kMaxCountedBackends) {
    return std::unexpected(fmt::format(
        "all pools together have at most {} backends: remove some first", kMaxCountedBackends));
  }
  return check_pool_fits(pool, owners_more);
}

std::expected<void, std::string> Model::check_family(std::string_view pool,
                                                     const Backend& backend) const {
  const bool is_v4 = backend.address.is_v4();
  const std::string* vip =
      vips_.find_layer2(pool, is_v4 ? AddressFamily::kIpv6 : AddressFamily::kIpv4);
  if (vip == nullptr) return {};
  return std::unexpected(
      fmt::format("VIP '{}' of encapsulation l2 uses pool '{}' and needs {} backends, but {} is "
                  "none: add the backend to another pool",
                  *vip, pool, is_v4 ? "IPv6" : "IPv4", backend.address.to_string()));
}

std::expected<void, Refusal> Model::check_vip(std::string_view name, const Vip& vip) const {
  if (vips().size() >= kMaxCountedVips && !vips().contains(name)) {
    return refuse("bad_request", fmt::format("there are {} VIPs, as many as a dataplane serves: "
                                             "remove one first",
                                             vips().size()));
  }
  const auto pool = find_pool(vip.pool);
  if (!pool) return std::unexpected(pool.error());
  if (auto fits = check_families(vip, **pool); !fits) return refuse("bad_request", fits.error());
  if (auto clash = vips_.find_clash(name, vip)) {
    return refuse(clash->same_service ? "exists" : "clash", std::move(clash->message));
  }
  return {};
}

std::expected<Overrides, Refusal> Model::plan_add_vip(const Named<Vip>& vip) const {
  const auto& [name, wanted] = vip;
  if (vips().contains(name)) {
    return refuse("exists", fmt::format("a VIP named '{}' exists already", name));
  }
  if (const auto fits = check_vip(name, wanted); !fits) return std::unexpected(fits.error());
  return Overrides{{vip_key(name), by_socket(wanted)}};
}

std::expected<Overrides, Refusal> Model::plan_remove_vip(std::string_view name) const {
  if (const auto vip = find_vip(name); !vip) return std::unexpected(vip.error());
  return Overrides{{vip_key(name), gone(file_vips_.contains(name))}};
}

void Model::apply(const Overrides& changes) {
  for (const Override& change : changes) apply_one(change);
}

void Model::apply_one(const Override& change) {
  const OverrideKey& key = change.key;
  if (std::holds_alternative<Forgotten>(change.value)) {
    overrides_.erase(key);
  } else {
    overrides_.insert_or_assign(key, change.value);
  }
  switch (key.kind) {
    case Kind::kPool:
      return apply_to_pool(change);
    case Kind::kBackend:
      return apply_to_backend(change);
    case Kind::kVip:
      if (const auto* vip = std::get_if<Vip>(&change.value)) {
        vips_.put(key.name, *vip);
      } else {
        vips_.erase(key.name);
      }
  }
}

void Model::apply_to_pool(const Override& change) {
  const std::string& name = change.key.name;
  std::erase_if(overrides_, [&](const auto& entry) {
    return entry.first.kind == Kind::kBackend && entry.first.pool == name;
  });
  pools_.erase(name);
  if (const auto* settings = std::get_if<PoolSettings>(&change.value)) {
    pools_.emplace(name, Pool{*settings, {}});
  }
}

void Model::apply_to_backend(const Override& change) {
  const std::string& name = change.key.name;
  auto& backends = pools_.at(change.key.pool).backends;
  if (const auto* backend = std::get_if<Backend>(&change.value)) {
    backends.insert_or_assign(name, *backend);
  } else if (const auto* change_of = std::get_if<BackendPatch>(&change.value)) {
    patch(backends.at(name), *change_of);
  } else {
    backends.erase(name);
  }
}

// The rules of what may be laid over the file as it is now.
std::expected<void, Model::Misfit> Model::check_restored(const Override& change) const {
  const auto& [key, value] = change;
  if (key.kind == Kind::kBackend) return check_restored_backend(change);
  if (key.kind == Kind::kPool) {
    if (!std::holds_alternative<Removed>(value)) return {};
    if (!file_pools_.contains(key.name)) return std::unexpected(Misfit{kNotInFile});
    const auto removable = plan_remove_pool(key.name);
    if (!removable) return std::unexpected(Misfit{removable.error().message});
    return {};
  }
  const auto* vip = std::get_if<Vip>(&value);
  const auto in_file = file_vips_.find(key.name);
  if (vip == nullptr) {
    if (in_file == file_vips_.end()) return std::unexpected(Misfit{kNotInFile});
    return {};
  }
  if (in_file != file_vips_.end() && by_socket(in_file->second) == *vip) {
    return std::unexpected(Misfit{kFileSaysTheSame});
  }
  const auto fits = check_vip(key.name, *vip);
  if (!fits) return std::unexpected(Misfit{fits.error().message, true});
  return {};
}

std::expected<void, Model::Misfit> Model::check_restored_backend(const Override& change) const {
  const auto& [key, value] = change;
  const auto pool = find_pool(key.pool);
  if (!pool) return std::unexpected(Misfit{pool.error().message});
  const Backend* in_file = file_backend(key.pool, key.name);
  const auto* backend = std::get_if<Backend>(&value);
  if (backend == nullptr && in_file == nullptr) return std::unexpected(Misfit{kNotInFile});
  if (backend != nullptr && in_file != nullptr && by_socket(*in_file) == *backend) {
    return std::unexpected(Misfit{kFileSaysTheSame});
  }
  const uint32_t weight_before = in_file != nullptr ? in_file->weight : 0;
  uint32_t weight = backend != nullptr ? backend->weight : 0;
  if (const auto* patch = std::get_if<BackendPatch>(&value)) {
    weight = patch->weight.value_or(weight_before);
  }
  const int owners_more = weight > 0 && weight_before == 0 ? 1 : 0;
  const size_t backends_more = backend != nullptr && in_file == nullptr ? 1 : 0;
  if (const auto fits = check_backend_fits(**pool, owners_more, backends_more); !fits) {
    return std::unexpected(Misfit{fits.error(), true});
  }
  if (backend != nullptr) {
    if (const auto fits = check_server_id(**pool, {change.key.name, *backend}); !fits) {
      return std::unexpected(Misfit{fits.error(), true});
    }
  }
  return {};
}

std::vector<Model::Dropped> Model::restore(Overrides remembered) {
  std::vector<Dropped> dropped;
  std::ranges::stable_sort(remembered, {}, restore_rank);
  for (const Override& change : remembered) {
    if (const auto fits = check_restored(change); fits) {
      apply_one(change);
    } else {
      dropped.push_back({change, fits.error().why, fits.error().is_conflict});
    }
  }
  std::ranges::move(drop_families_unfit(), std::back_inserter(dropped));
  for (const auto& [name, file_pool] : file_pools_) {
    const auto pool = pools_.find(name);
    if (pool == pools_.end() || pool->second.settings.source == Source::kFile) continue;
    Pool same = file_pool;
    same.settings = by_socket(same.settings);
    for (auto& [backend_name, backend] : same.backends) backend = by_socket(backend);
    if (pool->second != same) continue;
    apply_one({pool_key(name), Forgotten{}});
    pools_.emplace(name, file_pool);
    dropped.push_back({{pool_key(name), Forgotten{}}, kFileSaysTheSame});
  }
  return dropped;
}

// Backends are restored before the VIPs that may or may not be laid over the file's, so whether
// they fit those is looked at last.
std::vector<Model::Dropped> Model::drop_families_unfit() {
  std::vector<Dropped> dropped;
  for (const auto& [key, value] : overrides()) {
    const auto* backend = std::get_if<Backend>(&value);
    if (backend == nullptr) continue;
    const auto fits = check_family(key.pool, *backend);
    if (fits) continue;
    apply_one({key, Forgotten{}});
    if (const Backend* in_file = file_backend(key.pool, key.name)) {
      pools_.at(key.pool).backends.emplace(key.name, *in_file);
    }
    dropped.push_back({{key, value}, fits.error(), true});
  }
  return dropped;
}

Overrides Model::overrides() const {
  Overrides list;
  for (const auto& [key, value] : overrides_) list.push_back({key, value});
  return list;
}

}  // namespace maglev
