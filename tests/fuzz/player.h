// Plays an input to a lab. Single-threaded.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/fuzz/frames.h"
#include "tests/fuzz/lab.h"
#include "tests/fuzz/steps.h"

namespace maglev::fuzz {

class Player {
 public:
  // `first` is the input's first step.
  Player(const Step& first, Steps steps);

  // To the end; checks everything on the way.
  void play();

 private:
  void apply(const Step& step, ByteView behind);
  void add_template(const Step& step);
  void add_raw(ByteView bytes, bool segmented);
  void patch(const Step& step);
  void resize(const Step& step);
  void repeat(const Step& step);
  void receive(const Step& step);
  void publish(const Step& step, Configuration configuration);
  void make_room();
  uint8_t* field(uint32_t base, uint32_t offset);

  Steps steps_;
  uint32_t workers_;
  Lab lab_;
  Frame layout_;  // of the last frame
  uint32_t packets_ = 0;
  uint32_t publications_ = 0;
  std::vector<Step> record_patches_;
};

}  // namespace maglev::fuzz
