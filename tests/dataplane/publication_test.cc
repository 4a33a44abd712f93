// The product's publisher and readers against each other: meant to run under ThreadSanitizer too.
#include "dataplane/publication.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace maglev {
namespace {

constexpr uint64_t kDead = 0xdeaddeaddeaddead;

// Many words, so that a reader that came too early or stayed too long sees a mixture.
struct Generation {
  explicit Generation(uint64_t n) { words.fill(n); }
  ~Generation() { words.fill(kDead); }
  std::array<uint64_t, 64> words;
};

TEST(Publication, BeforeTheFirstOneThereIsNothing) {
  Publication<Generation> publication(1);
  Publication<Generation>::Reader reader(publication, 0);
  EXPECT_EQ(reader.current(), nullptr);
  EXPECT_TRUE(publication.may_publish());
}

TEST(Publication, AReplacedGenerationLivesUntilItsReaderIsQuiescent) {
  Publication<Generation> publication(1);
  Publication<Generation>::Reader reader(publication, 0);
  auto first = std::make_shared<const Generation>(1);
  const std::weak_ptr<const Generation> watch = first;
  publication.publish(std::move(first));
  reader.quiescent();
  EXPECT_EQ(reader.current()->words[0], 1u);
  publication.publish(std::make_shared<const Generation>(2));
  EXPECT_EQ(publication.reclaim(), 1u);
  EXPECT_FALSE(watch.expired()) << "the reader may still look at it";
  reader.quiescent();
  EXPECT_EQ(publication.reclaim(), 0u);
  EXPECT_TRUE(watch.expired());
}

TEST(Publication, AStuckReaderHoldsAtMostTwoRetiredGenerations) {
  Publication<Generation> publication(2);
  Publication<Generation>::Reader stuck(publication, 0);
  Publication<Generation>::Reader busy(publication, 1);
  uint64_t published = 0;
  for (uint64_t n = 1; n <= 10; ++n) {
    publication.reclaim();
    busy.quiescent();
    if (!publication.may_publish()) continue;
    publication.publish(std::make_shared<const Generation>(n));
    ++published;
  }
  EXPECT_EQ(published, 1 + Publication<Generation>::kMaxRetired);
  stuck.quiescent();
  busy.quiescent();
  EXPECT_EQ(publication.reclaim(), 0u);
  EXPECT_TRUE(publication.may_publish());
}

TEST(Publication, AReaderThatLeftHoldsNothing) {
  Publication<Generation> publication(1);
  publication.publish(std::make_shared<const Generation>(1));
  { Publication<Generation>::Reader reader(publication, 0); }
  publication.publish(std::make_shared<const Generation>(2));
  EXPECT_EQ(publication.reclaim(), 0u);
}

TEST(Publication, ManyReadersSeeOnlyWholeGenerationsInOrder) {
  constexpr uint32_t kReaders = 6;
  constexpr uint64_t kGenerations = 20000;
  Publication<Generation> publication(kReaders);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> faults{0};
  std::atomic<uint64_t> looks{0};
  std::vector<std::thread> readers;
  for (uint32_t id = 0; id < kReaders; ++id) {
    readers.emplace_back([&, id] {
      Publication<Generation>::Reader reader(publication, id);
      uint64_t last = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        if (const Generation* generation = reader.current()) {
          const uint64_t n = generation->words.front();
          bool whole = n >= last && n <= kGenerations;
          for (uint64_t word : generation->words) whole &= word == n;
          if (!whole) faults.fetch_add(1, std::memory_order_relaxed);
          last = n;
          looks.fetch_add(1, std::memory_order_relaxed);
        }
        reader.quiescent();
        std::this_thread::yield();  // there may be fewer processors than readers
      }
    });
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (uint64_t n = 1; n <= kGenerations && std::chrono::steady_clock::now() < deadline;) {
    publication.reclaim();
    if (publication.may_publish()) {
      publication.publish(std::make_shared<const Generation>(n++));
    } else {
      std::this_thread::yield();
    }
  }
  while (looks.load() < kGenerations && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(publication.owner()->words[0], kGenerations) << "not all were published in time";
  EXPECT_EQ(publication.reclaim(), 0u);
  EXPECT_EQ(faults.load(), 0u);
  EXPECT_GE(looks.load(), kGenerations);
}

}  // namespace
}  // namespace maglev
