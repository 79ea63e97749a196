// Copies between a device and its host: on a stream of their own, and in order with what they touch.
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "tests/unit/compile/CompileTest.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

/// `a` is on the host while products of its own size need its place; `k` and `h` are in the host's memory one after
/// the other.
constexpr const char *kModel = R"(
<ir_version: 10, opset_import: ["" : 18, "recast" : 1]>
g (float[16,16] x) => (float[16,16] z)
{
  a = Transpose <perm = [1, 0]> (x)
  h = recast.offload(a)
  b = MatMul(a, x)
  c = MatMul(b, x)
  d = MatMul(c, b)
  a2 = recast.fetch(h)
  e = MatMul(d, a2)
  k = recast.offload(e)
  f = MatMul(e, d)
  g1 = MatMul(f, f)
  e2 = recast.fetch(k)
  z = MatMul(g1, e2)
})";

struct Example {
  Example() {
    auto model = test::loadText(kModel);
    CompileOptions options;
    options.device = "cuda";
    options.emulates = true;
    auto compiled = model ? (*model)->compile(options) : Result<std::unique_ptr<Plan>>(model.status());
    if (compiled)
      plan = std::move(*compiled);
    else
      ADD_FAILURE() << compiled.message();
  }

  /// "" where all goes well, and z is in `z` then. `change` may put in a fault.
  std::string run(
      CheckingDevice &device, int streams, std::vector<float> &z,
      const std::function<void(DeviceExecutor &)> &change = [](DeviceExecutor &) {}) const {
    auto executor = DeviceExecutor::create(*plan, device, {.streams = streams, .graph = true});
    if (!executor)
      return executor.message();
    change(**executor);
    std::vector<float> x(256);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(i % 7) / 8 - 0.25f;
    for (int step = 0; step < 2; ++step) { // Host memory is written again while what was there before has been read.
      if (Status status = (*executor)->write((*executor)->find("x"), x.data()); !status.ok())
        return status.message();
      if (Status status = (*executor)->run(); !status.ok())
        return status.message();
    }
    z.resize(256);
    Status status = (*executor)->read((*executor)->find("z"), z.data());
    return status.ok() ? "" : status.message();
  }

  std::unique_ptr<Plan> plan;
};

TEST(Offload, CopiesHaveAStreamOfTheirOwn) {
  Example example;
  ASSERT_TRUE(example.plan);
  EXPECT_EQ(example.plan->hostBytes, 1024u);
  std::vector<float> want;
  for (int streams : {1, 2, 3}) {
    CheckingDevice device;
    int transfers = 0;
    std::vector<float> z;
    EXPECT_EQ(example.run(device, streams, z,
                          [&](DeviceExecutor &executor) {
                            for (const Scheduled &item : executor.scheduled) {
                              transfers += item.work.isTransfer;
                              if (streams > 1)
                                EXPECT_EQ(item.stream == streams - 1, item.work.isTransfer) << item.work.step;
                            }
                          }),
              "")
        << streams;
    EXPECT_EQ(transfers, 4);
    want = want.empty() ? z : want;
    EXPECT_EQ(z, want) << streams;
  }
}

TEST(Offload, EveryMissingEventIsNamed) {
  int events = 0;
  for (int event = 0;; ++event) {
    Example example;
    ASSERT_TRUE(example.plan);
    CheckingDevice device;
    device.lostEvents = {event};
    bool exists = false;
    std::vector<float> z;
    std::string fault = example.run(device, 2, z, [&](DeviceExecutor &executor) {
      exists = std::ranges::any_of(executor.scheduled, [&](const Scheduled &item) { return item.event == event; });
    });
    if (!exists)
      break;
    ++events;
    EXPECT_THAT(fault, testing::AnyOf(testing::HasSubstr("no event"), testing::HasSubstr("does not wait for")))
        << event;
  }
  EXPECT_GE(events, 4);
}

TEST(Offload, KernelsDoNotReachTheHost) {
  Example example;
  ASSERT_TRUE(example.plan);
  CheckingDevice device;
  std::vector<float> z;
  std::string fault = example.run(device, 2, z, [&](DeviceExecutor &executor) {
    std::ranges::find(executor.scheduled, true, [](const Scheduled &s) { return s.work.isTransfer; })->work.isTransfer =
        false;
  });
  EXPECT_THAT(fault, testing::HasSubstr("'h' lies outside of the device's memory"));
}

} // namespace
} // namespace recast::device
