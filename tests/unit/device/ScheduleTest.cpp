// Random work on several streams: the schedule orders all that has to be in order, and no event is there in vain.
#include "runtime/device/DeviceExecutor.h"
#include "runtime/device/Hazards.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace recast::device {
namespace {

std::vector<Work> randomWork(std::mt19937 &random, size_t count) {
  auto number = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  std::vector<Work> work;
  // All memory has been written before.
  work.push_back({"first", "", 1, 1, {}, {{"all", reinterpret_cast<std::byte *>(4096), 4096, false, true, nullptr}}});
  for (size_t i = 0; i < count; ++i) {
    Work item{"work " + std::to_string(i), "", 1, 1, {}, {}};
    for (int k = number(2); k >= 0; --k) {
      auto *data = reinterpret_cast<std::byte *>(4096 + 64 * number(31));
      int kind = number(2);
      item.uses.push_back({"memory", data, static_cast<size_t>(32 + 32 * number(6)), kind != 0, kind != 1});
    }
    work.push_back(std::move(item));
  }
  return work;
}

/// The first hazard, or "". Waits for the event `lost` are left out.
std::string play(const std::vector<Scheduled> &scheduled, int lost = -1) {
  Hazards hazards;
  for (const Scheduled &item : scheduled) {
    for (int event : item.waits)
      if (event != lost && !hazards.wait(event, item.stream))
        return "an event that nothing has recorded";
    if (std::string hazard = hazards.note(item.work.step, item.work.uses, item.stream); !hazard.empty())
      return hazard;
    if (item.event >= 0)
      hazards.record(item.event, item.stream);
  }
  return hazards.hasJoined(0, {}) ? "" : "streams that stream 0 does not wait for";
}

TEST(Schedule, OrdersRandomWork) {
  std::mt19937 random(7);
  size_t onOtherStreams = 0, events = 0, needed = 0;
  for (int round = 0; round < 200; ++round)
    for (int streams : {1, 2, 4}) {
      std::vector<Work> work = randomWork(random, 40);
      size_t count = work.size();
      std::vector<Scheduled> scheduled = schedule(std::move(work), streams);
      ASSERT_GE(scheduled.size(), count);
      EXPECT_EQ(play(scheduled), "") << "round " << round << ", streams " << streams;
      for (const Scheduled &item : scheduled) {
        ASSERT_LT(item.stream, streams);
        onOtherStreams += item.stream != 0;
        if (item.event < 0)
          continue;
        ++events;
        needed += !play(scheduled, item.event).empty();
      }
    }
  EXPECT_GT(onOtherStreams, 5000u);
  EXPECT_GT(events, 1000u);
  // An event may repeat what a chain of others says, rarely: later waits are looked at first.
  EXPECT_GT(needed * 10, events * 9);
}

} // namespace
} // namespace recast::device
