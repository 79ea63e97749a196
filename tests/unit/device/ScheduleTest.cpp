// Random work on several streams: the schedule orders all that has to be in order, and no event is there in vain.
#include "runtime/device/DeviceExecutor.h"
#include "runtime/device/Hazards.h"
#include "tests/unit/device/DeviceTest.h"
#include <algorithm>
#include <gtest/gtest.h>

namespace recast::device {
namespace {

using test::randomWork;

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
      for (size_t i = 1; i < count; ++i) // Every other round has some.
        work[i].isForRanks = round % 2 && random() % 5 == 0;
      std::vector<Scheduled> scheduled = schedule(std::move(work), streams);
      ASSERT_GE(scheduled.size(), count);
      EXPECT_EQ(play(scheduled), "") << "round " << round << ", streams " << streams;
      for (const Scheduled &item : scheduled) {
        ASSERT_LT(item.stream, streams);
        if (round % 2 && streams > 1)
          EXPECT_EQ(item.stream == streams - 1, item.work.isForRanks) << "the last stream is the ranks' own";
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
