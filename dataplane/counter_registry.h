// Gives each VIP and each backend its place in the workers' counter arrays.
//
// A name keeps its place as long as any snapshot holds it, so counters go on across generations.
// When the last holding snapshot has been freed, which is after every worker left it, the place is
// cleared and may serve another name: nothing is inherited. Main thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maglev {

// Keeps a place taken; the number is the index into the counter arrays.
using CounterHold = std::shared_ptr<const uint32_t>;

class CounterRegistry {
 public:
  // clear(index) is called before a place is given to another name.
  CounterRegistry(uint32_t capacity, std::function<void(uint32_t)> clear)
      : places_(std::make_shared<Places>(Places{capacity, 0, {}, std::move(clear)})) {}

  // The place of a name, or null when all are taken.
  CounterHold hold(const std::string& name) {
    std::weak_ptr<const uint32_t>& entry = by_name_[name];
    if (CounterHold held = entry.lock()) return held;
    const std::optional<uint32_t> index = places_->take();
    if (!index) return nullptr;
    CounterHold fresh(new uint32_t(*index), [places = places_](const uint32_t* place) {
      places->give_back(*place);
      delete place;
    });
    entry = fresh;
    return fresh;
  }

  // Drops names that nobody holds any more.
  void forget_unheld() {
    std::erase_if(by_name_, [](const auto& entry) { return entry.second.expired(); });
  }

 private:
  struct Places {
    uint32_t capacity;
    uint32_t used;  // places below this have been given out at least once
    std::vector<uint32_t> free;
    std::function<void(uint32_t)> clear;

    std::optional<uint32_t> take() {
      if (free.empty()) return used < capacity ? std::optional(used++) : std::nullopt;
      const uint32_t index = free.back();
      free.pop_back();
      return index;
    }
    void give_back(uint32_t index) {
      clear(index);
      free.push_back(index);
    }
  };

  std::shared_ptr<Places> places_;  // shared with the holds, which may outlive the registry
  std::map<std::string, std::weak_ptr<const uint32_t>> by_name_;
};

}  // namespace maglev
