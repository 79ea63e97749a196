// What a DeviceExecutor does among several ranks: it reduces, and waits for the others.
#include "runtime/device/DeviceExecutor.h"
#include "runtime/device/Overlap.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

namespace recast::device {
namespace {

constexpr size_t kAlignment = 256; ///< Of buckets.

/// How long a rank looks only at its own device before it sees to the others, and how often it looks.
constexpr std::chrono::milliseconds kPatience(1000);
constexpr std::chrono::microseconds kPause(20);

} // namespace

/// What the table has for a process alone is done by all ranks here.
Status DeviceExecutor::addCollective(const Step &step, Scope &scope) {
  if (step.spec.op == "all_reduce")
    return addAllReduce(step, scope);
  addLaunches(step, scope, cuda::rankProgram({options.ranks->rank(), options.ranks->size()}), {});
  return Status::success();
}

/// On several streams a bucket is packed and reduced where the last of its operands is known, in memory of its own; its
/// results are written here, for their memory may be in use before. On one stream buckets share their memory.
Status DeviceExecutor::addAllReduce(const Step &step, Scope &scope) {
  bool overlaps = options.streams > 1;
  std::vector<size_t> order(cuda::numSums(step.spec)), known(step.inputs.size(), work.size());
  std::iota(order.begin(), order.end(), 0);
  if (overlaps) {
    std::vector<MemoryUse> operands;
    for (int input : step.inputs)
      operands.push_back(use(scope, input, true, false));
    known = finishEarly(work, operands);
    std::ranges::sort(order, {}, [&](size_t operand) { return std::pair(known[operand], operand); });
  }
  cuda::Buckets buckets;
  std::string refusal;
  if (!cuda::compileAllReduce(step.spec, {options.ranks->rank(), options.ranks->size(), options.bucketBytes}, order,
                              buckets, refusal))
    return Status::error("node '" + step.spec.name + "' (all_reduce): " + refusal);
  std::vector<size_t> offsets;
  size_t bytes = 0;
  for (const cuda::Bucket &bucket : buckets) {
    offsets.push_back(overlaps ? bytes : 0);
    bytes = std::max(bytes, offsets.back() + (bucket.bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  Result<std::byte *> memory = device.allocate(bytes, "what ranks reduce");
  if (!memory)
    return memory.status();
  ++trafficOfStep.reductions;
  trafficOfStep.buckets += static_cast<int64_t>(buckets.size());
  std::vector<Work> before = std::move(work), results;
  work.clear();
  size_t taken = 0;
  auto take = [&](size_t end) {
    for (; taken < end; ++taken)
      work.push_back(std::move(before[taken]));
  };
  for (size_t i = 0; i < buckets.size(); ++i) {
    const cuda::Bucket &bucket = buckets[i];
    trafficOfStep.bytes += static_cast<int64_t>(bucket.bytes);
    MemoryUse place{"what ranks reduce", *memory + offsets[i], bucket.bytes, false, false, &step};
    for (size_t operand : bucket.operands)
      take(known[operand]);
    for (const cuda::Launch &launch : bucket.fill) {
      work.push_back(bind(step, scope, launch, place));
      work.back().isForRanks = true;
    }
    for (const cuda::Launch &launch : bucket.empty)
      (overlaps ? results : work).push_back(bind(step, scope, launch, place));
  }
  take(before.size());
  std::ranges::move(results, std::back_inserter(work));
  return Status::success();
}

/// A device that waits for one that will not come waits forever. So ranks look whether their device is done, and every
/// now and then meet on the host, which notices the death of one.
Status DeviceExecutor::waitForRanks() {
  Communicator &ranks = *options.ranks;
  ranks.traffic.reductions += trafficOfStep.reductions;
  ranks.traffic.buckets += trafficOfStep.buckets;
  ranks.traffic.bytes += trafficOfStep.bytes;
  while (true) {
    auto until = std::chrono::steady_clock::now() + kPatience;
    Result<bool> isDone = device.isDone(0);
    for (; isDone && !*isDone && std::chrono::steady_clock::now() < until; isDone = device.isDone(0))
      std::this_thread::sleep_for(kPause);
    if (!isDone)
      return isDone.status();
    float done = *isDone ? 1 : 0;
    if (Status status = ranks.sum(&done, 1); !status.ok())
      return status;
    if (done == static_cast<float>(ranks.size()))
      return Status::success();
  }
}

} // namespace recast::device
